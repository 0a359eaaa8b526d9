"""Exhaustive, exact top-k.

    backend        the protocol: packed keywords and integer queries in, the best k in total order out
    reference      the oracle, in plain NumPy; every other backend equals it, ties included
    cpu            the native scan
    gpu            devices, residency, kernels/
    paper          the published selection, and in missrate what it may miss
    progressive    the first planes of all, the others of the best
    hits           the result that people see
    stages         where the time of a search goes

The way to the CPU imports no torch.
"""
