"""The search service: `rbegir serve INDEX`.

    server ─ protocol      the process and its sockets: limits on headers, connections, shutdown
    app ─ middleware       the table of routes; around every request: deadline, problems, log, metrics
    catalog ─ service      the indexes by name; the parts that serve one of them:
    routes ─ body          one handler per route; bytes to validated work
    openapi                what a handler is declared with, and the OpenAPI document made from that
    batcher                many searches, one scan; filters  ┐ over an Index or a Cluster;
    committer              many changes, one durable write   ┘ `served` explains its hits
    monitor                what the operator sees: the log and the metrics

Bodies are described in `rbegir.wire`. Nothing here is imported by the library; it needs the extra `[serve]`.
"""
