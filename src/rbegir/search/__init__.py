"""Exhaustive, exact top-k search over packed codes.

    partition      what a backend is given and returns, and the total order of hits
    backend        the contract of a backend, and the searches that follow from an exact one
    registry       which backend serves which device
    reference      the oracle, in plain NumPy; every other backend equals it, ties included
    cpu            the native scan
    gpu            one or several GPUs
    paper          the published selection
    missrate       what the published selection may miss: its certificate
    progressive    the first planes of all keywords, then all planes of the best
    hits           `Hits`, the public result

The CPU path imports no torch, and `hits` needs only NumPy.
"""
