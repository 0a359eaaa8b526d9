"""The client of a search service: `rbegir.Client` and `rbegir.AsyncClient`.

    calls.py          what is sent and how an answer is read, without any input or output of its own
    retry.py          which failures are tried again, and when
    synchronous.py    Client: blocks        ┐ the same methods, over httpx
    asynchronous.py   AsyncClient: awaits   ┘

Methods have the names, arguments and results of `rbegir.Index`, so that a program can start with a directory
and go on with a service. Needs the extra `[client]`.
"""
