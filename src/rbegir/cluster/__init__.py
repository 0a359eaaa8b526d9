"""Past one machine: the same index searched, built and served by the processes of a Ray cluster.

    search    client (rbegir.Cluster) ─ fanout ─ shard (a process that scans some segments)
                 └─ gather: the answers of the shards merged into the hits that one machine would find
    state     view: where an index lies, one state of it, and which shard has which segments
    build     bulk: one segment per task, encoded by many processes
    Ray       session: connecting · pool: the shards and the writer · http: the service inside Ray Serve

A shard keeps no state that matters. Every question names the state of the index that it is about (a *view*),
and a shard that does not know it reads it from the shared files. So Ray can replace a shard that dies; new
segments and even another index are a new view, without a restart; and every answer names the view it came
from, so that parts of different states are never put together.
"""
