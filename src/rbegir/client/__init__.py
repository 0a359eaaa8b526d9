"""The client of a search service: `rbegir.Client` and `rbegir.AsyncClient`.

    clients      Client blocks, AsyncClient awaits: the same methods, over httpx
    calls        what each method sends, checked as an index checks it, and what the response means
    transport    settings of httpx, bounded bodies, and which failures are tried again

Methods have the names, arguments and results of `rbegir.Index`, so that a program can start with a directory
and go on with a service. Needs the extra `[client]`, and neither the native module nor torch.
"""
