"""Small parts that every package uses and that know nothing about codes or search.

arguments  ids, texts and attributes from callers, checked and converted to Arrow arrays
disk       durable files: write, sync, replace
mapping    mapped files that survive truncation
devices    the CPUs of this process, a read-ahead thread, and GPUs by name
freeing    large removed files, freed little by little
masks      sets of positions as bits
progress   bars on stderr for long calls, where somebody sees them
"""
