"""Exhaustive, exact top-k search over packed codes.

    partition      what a backend is given and returns, and the total order of hits
    backend        the contract of a backend, the searches that follow from an exact one, and what serves
                   which device
    reference      the oracle, in plain NumPy; every other backend equals it, ties included
    cpu            the native scan
    gpu            one or several GPUs
    paper          the published selection
    missrate       what the published selection may miss: its certificate
    rerank         the first candidates ordered by their texts
    hits           `Hits`, the public result

The CPU path imports no torch.
"""
