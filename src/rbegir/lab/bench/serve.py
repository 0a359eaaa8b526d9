"""The service under load: a real `rbegir serve` in a process of its own, over the loopback of this machine.

Clients in closed loops send a mix of searches and writes (`load.py`). Servers with and without micro-batching
take turns on the same index, each round in a new process. The result has the median over rounds, the spread,
and the median of the ratios of neighbouring rounds. After each round every written id is read back over HTTP,
the server is stopped, and the ids are read once more from the files it leaves.

Texts are shipped titles combined at random. Weights are random unless a model is given: a trained model of
the same shape takes about the same time; only the hits mean less.
"""

import asyncio
import gzip
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import preset, random_tensors
from rbegir.errors import InputError, RbegirError, whole_number
from rbegir.index.store import Index
from rbegir.lab.bench import host
from rbegir.lab.bench.databases import DATABASES, PACKAGES
from rbegir.lab.bench.load import Ledger, Mix, Tally, drive, prepared, read_back
from rbegir.lab.figures import Json
from rbegir.read.sample import sample_path

QUERIES = 2000
WARM_S = 1.0
LIMIT_S = 3.0
PEER_LIMIT_S = 900.0
BATCH_ROWS = 1 << 16
SUMMARISED = (
    "searches_per_s", "requests_per_s", "p50_ms", "p99_ms", "write_p50_ms", "write_p99_ms", "queries_a_scan",
    "cpu_ms_a_search",
)  # fmt: skip
SETTINGS = {"batched": (), "unbatched": ("--max-batch", "1")}


def run(
    *,
    keywords: int = 1_000_000,
    k: int = 100,
    clients: int = 64,
    seconds: float = 60.0,
    rounds: int = 3,
    writes: float = 0.05,
    model: Path | None = None,
    peers: bool = False,
    peer_seconds: float = 10.0,
    progress: host.Progress = host.quiet,
) -> Json:
    """The benchmark; `seconds` is the load of each setting, split over the rounds."""
    whole_number("keywords", keywords, k)
    for name, value in (("k", k), ("clients", clients), ("rounds", rounds)):
        whole_number(name, value)
    if not (0 <= writes < 1 and seconds > 0):
        raise InputError(
            f"writes must be a share below 1, seconds more than 0, got {writes:g} and {seconds:g}"
        )
    with tempfile.TemporaryDirectory(prefix="rbegir-bench-") as name:
        folder = Path(name)
        progress(0.0, "building the index")
        queries = prepare(folder, keywords, model, peers)
        bodies = (json.dumps({"queries": [text], "k": k}).encode() for text in queries)
        mix = Mix([prepared("POST", "/v1/search", body) for body in bodies], queries, k, writes)
        ledger = Ledger()
        cells: list[Json] = []
        total = 2 * rounds + 1 + (len(DATABASES) if peers else 0)
        for number in range(rounds):
            for setting in SETTINGS if number % 2 == 0 else reversed(SETTINGS):
                progress(len(cells) / total, f"round {number + 1}, {setting}")
                cells.append(_round(folder, mix, ledger, number, setting, clients, seconds / rounds))
        progress(len(cells) / total, "limit of the generator")
        generator = _generator_limit(folder, mix, clients)
        beside: Json = {}
        for at, name in enumerate(DATABASES if peers else ()):
            progress((len(cells) + 1 + at) / total, name)
            beside[name] = _peer(name, folder, peer_seconds, k, writes)
        name = "random weights" if model is None else model.name
        about = {"keywords": keywords, "model": name, "k": k, "clients": clients, "write_share": writes}
        return {**about, "generator": generator, **_result(cells, ledger, beside)}


def prepare(folder: Path, keywords: int, model: Path | None, peers: bool) -> list[str]:
    """Build the index and return the queries; for the peers also write texts and vectors of equal cosines."""
    with gzip.open(sample_path("titles"), "rt", encoding="utf-8") as file:
        titles = file.read().splitlines()
    rng = random.Random(0)
    queries = rng.sample(titles, QUERIES)
    texts = titles[:keywords]
    for row in range(len(texts), keywords):  # more texts: a title and the last word of another
        texts.append(f"{titles[row % len(titles)]} {rng.choice(titles).split()[-1]}")
    loaded = Model.load(model if model is not None else random_model(folder / "model"))
    table = pa.table({"id": np.arange(keywords), "text": texts})
    Index.build(folder / "index.rbe", loaded, table.to_batches(BATCH_ROWS)).close()
    if peers:
        shutil.copytree(folder / "index.rbe", folder / "peer.rbe")  # the load writes to the other one
        (folder / "texts.txt").write_text("\n".join(texts))
        (folder / "queries.txt").write_text("\n".join(queries))
        np.save(folder / "vectors.npy", loaded.encode_keywords(texts).values().astype(np.float32))
        np.save(folder / "queries.npy", loaded.encode_queries(queries).values().astype(np.float32))
    return queries


def random_model(folder: Path, **changes: Any) -> Path:
    """A model like rbe_star with random weights, the same for both sides: a text is nearest to itself.

    `changes` are made to the configuration, such as conv=16 for a small one.
    """
    config = replace(preset("rbe_star"), share_towers=True, **changes)
    drawn = random_tensors(config)
    tensors = {name: drawn[name.replace("keyword.", "query.", 1)] for name in drawn}
    checkpoint.write(folder, config, tensors, {})
    return folder


@contextmanager
def service(index: Path, *options: str) -> Iterator[tuple[int, int]]:
    """A running `rbegir serve`: yields its port and process id, and stops it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rbegir", "serve", str(index), "--port", "0", "--no-access-log", *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r" at http://127\.0\.0\.1:(\d+)", line):
            break
    else:
        process.wait()
        raise RbegirError(f"the service did not start: {' '.join(said)[-300:]}")
    try:
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _round(
    folder: Path, mix: Mix, ledger: Ledger, number: int, setting: str, clients: int, seconds: float
) -> Json:
    """One server: warmed up, loaded, read back and stopped; then its files are read."""
    with service(folder / "index.rbe", *SETTINGS[setting]) as (port, process):
        asyncio.run(drive(port, replace(mix, writes=0.0), Ledger(), clients=clients, seconds=WARM_S, seed=0))
        before, cpu_before = _counters(port), cpu_seconds(process)
        tally = asyncio.run(drive(port, mix, ledger, clients=clients, seconds=seconds, seed=number + 1))
        after, cpu_after = _counters(port), cpu_seconds(process)
        asyncio.run(read_back(port, ledger))
        (folder / "answer.json").write_bytes(tally.answer)
    with Index.open(folder / "index.rbe", read_only=True) as index:
        keys = sorted(ledger.expected)
        for key, found in zip(keys, index.get(keys) if keys else [], strict=True):
            ledger.read(key, None if found is None else found["text"])
    queries = after["rbegir_batch_queries_sum"] - before["rbegir_batch_queries_sum"]
    scans = after["rbegir_batch_queries_count"] - before["rbegir_batch_queries_count"]
    return {
        "round": number + 1,
        "setting": setting,
        **_figures(tally),
        "queries_a_scan": queries / scans if scans else None,
        "cpu_ms_a_search": (cpu_after - cpu_before) * 1e3 / max(queries, 1),
        "load_average": host.load_average(),
    }


def cpu_seconds(process: int) -> float:
    """CPU time of a process so far, on all cores; unlike wall time it does not depend on what else runs."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _counters(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    found = (line.split() for line in lines if line.startswith("rbegir_batch_queries_"))
    return {name: float(value) for name, value in found}


def _figures(tally: Tally) -> Json:
    def at(times: list[float], share: float) -> float | None:
        return float(np.percentile(times, share)) if times else None

    return {
        "seconds": tally.seconds,
        "searches": len(tally.search_ms),
        "writes": len(tally.write_ms),
        "reads": len(tally.read_ms),
        "searches_per_s": len(tally.search_ms) / tally.seconds,
        "requests_per_s": (len(tally.search_ms) + len(tally.write_ms) + len(tally.read_ms)) / tally.seconds,
        "p50_ms": at(tally.search_ms, 50),
        "p99_ms": at(tally.search_ms, 99),
        "write_p50_ms": at(tally.write_ms, 50),
        "write_p99_ms": at(tally.write_ms, 99),
        "answer_bytes": len(tally.answer),
        "errors": dict(tally.errors),
    }


def _generator_limit(folder: Path, mix: Mix, clients: int) -> Json:
    """The generator's own limit, against a server that only replays one response of the service."""
    command = [sys.executable, "-m", "rbegir.lab.bench.load", str(folder / "answer.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stub:
        assert stub.stdout is not None
        try:
            port = int(stub.stdout.readline())
            searches = replace(mix, writes=0.0)
            tally = asyncio.run(drive(port, searches, Ledger(), clients=clients, seconds=LIMIT_S, seed=0))
        finally:
            stub.terminate()
    return {"searches_per_s": len(tally.search_ms) / tally.seconds, "answer_bytes": len(tally.answer)}


def _peer(name: str, folder: Path, seconds: float, k: int, writes: float) -> Json:
    words = [name, str(folder), str(seconds), str(k), str(writes)]
    command = [sys.executable, "-m", "rbegir.lab.bench.databases", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_LIMIT_S + seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"it was not ready after {PEER_LIMIT_S:.0f} s"}
    if done.returncode:
        return {"failed": host.last_line(done.stderr)}
    figures: Json = json.loads(done.stdout.splitlines()[-1])
    return figures


def _result(cells: list[Json], ledger: Ledger, peers: Json) -> Json:
    by = {setting: [cell for cell in cells if cell["setting"] == setting] for setting in SETTINGS}
    ratios = [
        on["searches_per_s"] / off["searches_per_s"]
        for on, off in zip(by["batched"], by["unbatched"], strict=True)
    ]
    batched = statistics.median(cell["searches_per_s"] for cell in by["batched"])
    return {
        "host": host.describe(("starlette", "uvicorn", "pydantic", *PACKAGES)),
        "cells": cells,
        **{setting: _summary(of) for setting, of in by.items()},
        "ratio": host.spread(ratios),
        "errors": sum(sum(cell["errors"].values()) for cell in cells),
        "integrity": {
            "acknowledged_writes": ledger.acknowledged,
            "reads": ledger.reads,
            "written_ids_seen_in_searches": ledger.searched_ids,
            "lost": len(ledger.lost),
            "phantom": len(ledger.phantoms),
            "examples": (ledger.lost + ledger.phantoms)[:5],
        },
        "peers": {
            name: {**peer, "ratio": batched / peer["searches_per_s"]} if "searches_per_s" in peer else peer
            for name, peer in peers.items()
        },
    }


def _summary(cells: list[Json]) -> Json:
    """Medians over rounds, with the lowest and highest."""
    summary: Json = {"seconds": sum(cell["seconds"] for cell in cells)}
    for name in SUMMARISED:
        if values := [cell[name] for cell in cells if cell[name] is not None]:
            summary[name] = host.spread(values)
    return summary
