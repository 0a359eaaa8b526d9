"""Two-tower text models whose embeddings are sums of binary vectors.

    learns     twotower ─ clsm (text → one vector) ─ rbe (vector → planes) ─ binarize (ρ and its gradients)
    is         presets (the paper's models by name) · shapes (their tensors)
    on disk    checkpoint ─ directory ─ tensorfile
    encodes    model ─ inference (the CPU, without torch) or device (a GPU, with kernels)

Searching needs no torch: `model` imports it only for a GPU.
"""
