"""The GPU kernels: Triton for every shape, CUDA C++ for batches on tensor cores."""
