"""Past one machine: the same index searched, built and served by the processes of a Ray cluster.

    engine    connecting to Ray, and what Ray must not do (no statistics, no dashboard, no chatter)
    location  where an index lies: a path that all nodes see, or any file system that pyarrow knows
    view      one state of an index and which shard searches which of its segments
    shard     the process that searches some segments; asked by `fanout`, placed by `pool`
    gather    the answers of the shards put together: the same hits as one machine's, in every mode
    client    rbegir.Cluster
    writer    the one process that changes the index
    bulk      building an index with many processes
    plan      how many machines a wish takes

A shard keeps no state that matters. Every question names the state of the index that it is about (a *view*),
and a shard that does not know it reads it from the shared files. So a shard that dies is replaced by Ray and
needs nobody's memory; new segments and even another index are a new view, without a restart; and every answer
names the view it came from, so that parts of different states are never put together.
"""
