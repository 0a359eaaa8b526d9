"""Small parts that every package uses and that know nothing about codes or search.

checks     refuses wrong arguments with one wording
disk       durable files: write, sync, replace
devices    the CPUs of this process, and GPUs by name
masks      sets of positions as bits
ahead      makes the next item in a thread while the current one is used
"""
