"""The search service: `rbegir serve INDEX`.

    socket ─ protocol ─ app ─┬─ search ─ batcher ─ one scan for many requests ─ hits ─ bytes
                             └─ keywords ─ committer ─ one durable write for many requests

Nothing here is imported by the library; it needs the extra `[serve]`.
"""
