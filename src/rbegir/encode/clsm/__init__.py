"""Two-tower text models whose embeddings are sums of binary vectors.

    what it is    presets (the paper's models by name, and their tensors)
    learning      twotower ─ clsm (text → one vector, kernels on a GPU) ─ rbe (vector → planes) ─ binarize (ρ)
    on disk       checkpoint
    encoding      model ─ sides (the CPU without torch, or a GPU)

Searching needs no torch: `sides` imports it only for a GPU.
"""
