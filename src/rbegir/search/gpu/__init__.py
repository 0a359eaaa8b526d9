"""Search on GPUs: Triton kernels for every shape, CUDA C++ for batches on tensor cores.

    backend                            several devices as one: placing keywords, merging results
    device                             one device: resident keywords, stream, faults
    words                              keywords in device memory, their layout and their sample
    card                               the steps of a search on one device
      threshold → scan → order           a threshold from a sample, what passes it, the total order
      scans · tensorcore                 one query, batches of any shape; batches on tensor cores
      dispatch                           which scan for which batch
    proof                              the count that proves that the threshold was low enough, or repairs it
    replay                             small searches as CUDA graphs
    compact                            few candidates among many keywords
    maxsim · matches                   late interaction: which items, and the best matches of each

Under Triton's interpreter the same kernels run on the CPU, which is how they are tested without a GPU.
"""
