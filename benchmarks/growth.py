"""An index that grows to 10⁸ keywords: time to open, to the first search and per change, by size.

    python benchmarks/growth.py DIRECTORY OUT.json --keywords 1e8

Keywords are random codes of 16 bytes with ids and texts of about 18 bytes, added in commits of a million. At
each of several sizes a new process opens the index and measures it. Then the index is compacted while another
thread changes it, measured again, and served over HTTP. `anonymous_mb` is memory that is not a mapped file,
which the system could not take back. The first change of a process is reported apart from the others: it
takes the lock, and PyArrow imports pandas in it where pandas is installed. Beside the compaction, modules are
kept from Python's garbage collector, as in `rbegir serve`: with a hundred segments, one change in a thousand
sets off a full collection, which holds up all threads for 20 ms and more if many modules are imported.

How this can mislead: the files were just written, so most of them lie in the page cache, as they do in a
service that runs; after a restart of the machine the first search reads them from the disk.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import rbegir
from rbegir.lab.bench.host import describe, milliseconds
from rbegir.lab.bench.scan import PLANES, N, random_codes
from rbegir.lab.bench.serve import service
from rbegir.lab.figures import Json

COMMIT = 1_000_000
SEARCHES, CHANGES = 20, 40


def memory(field: str) -> int:
    """Megabytes of this process by a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(field + ":"))


def grow(path: Path, first: int, end: int) -> float:
    """Add keywords [first, end) and return the seconds."""
    began = time.perf_counter()
    rng = np.random.default_rng(first)
    with rbegir.Index.open(path) as index:
        for start in range(first, end, COMMIT):
            ids = pa.array(np.arange(start, min(end, start + COMMIT)))
            texts = pc.binary_join_element_wise("keyword", pc.cast(ids, pa.string()), " ")
            index.add_codes(random_codes(len(ids), PLANES, rng), ids, texts=texts)
    return time.perf_counter() - began


def change(index: rbegir.Index, rng: np.random.Generator, number: int) -> None:
    """Replace one keyword."""
    index.add_codes(
        random_codes(1, PLANES, rng),
        [int(rng.integers(0, len(index)))],
        texts=[f"changed {number}"],
        upsert=True,
    )


def measure(path: Path) -> Json:
    """Figures of a process that opens the index."""
    rng = np.random.default_rng(1)
    began = time.perf_counter()
    index = rbegir.Index.open(path)
    opened = (time.perf_counter() - began) * 1e3
    queries = random_codes(1, 3, rng)
    first = milliseconds(lambda: index.search_codes(queries, k=10))
    searches = [milliseconds(lambda: index.search_codes(queries, k=10)) for _ in range(SEARCHES)]
    segments = index.info()["segments"]
    first_change = milliseconds(lambda: change(index, rng, CHANGES))
    changes = [milliseconds(lambda number=number: change(index, rng, number)) for number in range(CHANGES)]
    deletes = [milliseconds(lambda: index.delete([int(rng.integers(0, len(index)))])) for _ in range(CHANGES)]
    found = {
        "keywords": len(index),
        "segments": segments,
        "open_ms": opened,
        "first_search_ms": first,
        "search_ms": statistics.median(searches),
        "first_change_ms": first_change,
        "change_ms": statistics.median(changes),
        "slowest_change_ms": max(changes),
        "delete_ms": statistics.median(deletes),
        "anonymous_mb": memory("RssAnon"),
        "disk_gb": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e9,
    }
    index.close()
    return found


def compact(path: Path) -> Json:
    """Compaction beside changes: how long it takes, and the slowest change."""
    rng = np.random.default_rng(2)
    with rbegir.Index.open(path) as index:
        change(index, rng, 0)
        gc.collect()
        gc.freeze()
        compaction = threading.Thread(target=index.compact)
        began = time.perf_counter()
        compaction.start()
        waits = []
        while compaction.is_alive():
            waits.append(milliseconds(lambda: change(index, rng, len(waits))))
        compaction.join()
        return {
            "seconds": time.perf_counter() - began,
            "changes": len(waits),
            "change_ms": statistics.median(waits),
            "slowest_change_ms": max(waits),
            "segments": index.info()["segments"],
            "peak_mb": memory("VmHWM"),
            "anonymous_mb": memory("RssAnon"),
        }


def serve(path: Path) -> Json:
    """The index behind HTTP: time until it is ready, and searches by code one after the other."""
    rng = np.random.default_rng(3)
    began = time.perf_counter()
    with service(path, "--read-only") as (port, _):
        ready = time.perf_counter() - began
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:

            def search() -> None:
                planes = [rng.bytes(8).hex() for _ in range(3)]
                client.post("/v1/search", json={"codes": [planes], "k": 10}).raise_for_status()

            first = milliseconds(search)
            times = [milliseconds(search) for _ in range(SEARCHES)]
        return {"ready_s": ready, "first_search_ms": first, "search_ms": statistics.median(times)}


def in_new_process(step: str, path: Path) -> Json:
    done = subprocess.run(
        [sys.executable, __file__, str(path), "-", "--step", step], capture_output=True, check=True
    )
    found: Json = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--keywords", type=lambda text: int(float(text)), default=100_000_000)
    parser.add_argument("--step", choices=("measure", "compact"))
    args = parser.parse_args()
    if args.step:
        print(json.dumps({"measure": measure, "compact": compact}[args.step](args.directory)))
        return
    path = args.directory / "growing.rbe"
    rbegir.Index.create(path, n=N, keyword_planes=PLANES, query_planes=3).close()
    sizes = sorted({min(args.keywords, size) for size in (10**6, 10**7, 3 * 10**7, args.keywords)})
    result: Json = {"host": describe(), "commit_keywords": COMMIT, "sizes": []}
    held = 0
    for size in sizes:
        seconds = grow(path, held, size)
        result["sizes"].append({**in_new_process("measure", path), "added_per_s": (size - held) / seconds})
        held = size
        print(json.dumps(result["sizes"][-1]), flush=True)
    result["compaction"] = in_new_process("compact", path)
    print(json.dumps(result["compaction"]), flush=True)
    result["compacted"] = in_new_process("measure", path)
    print(json.dumps(result["compacted"]), flush=True)
    result["service"] = serve(path)
    print(json.dumps(result["service"]), flush=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
