"""The GPU kernels: Triton for every shape, CUDA C++ for batches on tensor cores.

    words, shard                     keywords on a device
    threshold → scan → order         a search: a threshold from a sample, what passes it, the total order
      popcount · product · tensorcore  the scans: one query, batches of any shape, batches on tensor cores
      dispatch                         which of them for which batch
    proof                            the count that shows the threshold was low enough, or repairs it
    card, replay                     the steps on one device; small searches as CUDA graphs
    local                            the published selection
    compact                          few candidates among many keywords
    bits, runtime, nvrtc             single instructions; compiled or interpreted; CUDA C++ without a toolkit

Under Triton's interpreter the same kernels run on the CPU, which is how they are tested without a card.
"""
