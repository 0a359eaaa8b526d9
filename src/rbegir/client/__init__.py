"""The client of a search service: `rbegir.Client` and `rbegir.AsyncClient`.

    calls.py          what is sent, checked as an index checks it
    answers.py        what comes back, as the values and errors of this package
    retry.py          which failures are tried again, and when
    transport.py      what both need of httpx
    synchronous.py    Client: blocks        ┐ the same methods, over httpx
    asynchronous.py   AsyncClient: awaits   ┘

Methods have the names, arguments and results of `rbegir.Index`, so that a program can start with a directory
and go on with a service. Needs the extra `[client]`.
"""
