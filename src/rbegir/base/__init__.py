"""Small parts that every package uses and that know nothing about codes or search.

checks     refuses wrong arguments with one wording
disk       durable files: write, sync, replace
devices    the CPUs of this process, a thread that works ahead, and GPUs by name
masks      sets of positions as bits
progress   bars on stderr for long calls, where somebody sees them
"""
