"""How fast a model trains, from text to updated parameters, and where the time of a step goes.

The pairs are streamed like a file larger than memory: every epoch is read, tokenised, shuffled and cut into
batches again. The first epoch warms up; each of the others gives one figure. `pairs_per_s` is their median,
`spread` the lowest and highest. Then `parts_ms` times single steps, waiting for each part: the parts add up
to more than a step of the stream, in which the host works ahead of the device.

`floor_ms` is what memory traffic alone would take at the device's measured copy rate, counting each byte
once:

    forward    each gram's row read, word vectors written; a window's three parts read, maxima written
    loss       the score matrix written, then read and written by exp, read by the sum and two products
    backward   word gradients written twice (zeros, sums) and read once per gram, row gradients written
    update     touched rows of the tables read and written, their gradients read twice, scaled, read
"""

import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rbegir.base.devices import cpu_count
from rbegir.encode.clsm.presets import preset as named_preset
from rbegir.encode.clsm.twotower import TwoTower
from rbegir.errors import whole_number
from rbegir.lab.bench.host import describe, device_name
from rbegir.lab.figures import Json
from rbegir.read.pairs import PairStream, read_pairs
from rbegir.training.batches import StepBatch, build, epoch_batches
from rbegir.training.config import recipe
from rbegir.training.data import TrainingData, tokenize_pairs
from rbegir.training.step import Learner, batch_threads, matmul_precision, resolve_device

STEPS = 20  # timed part by part
GPU_ROWS = 4_000_000


def measure(
    pairs: PairStream,
    *,
    preset: str = "rbe_star",
    device: str = "auto",
    batch_size: int | None = None,
    negatives: str | int = "in_batch",
    rows: int | None = None,
    epochs: int = 5,
) -> Json:
    """The benchmark of one setting. `rows`: pairs per epoch, repeating the file.

    By default all of the file, but 4 million on a GPU, which would finish fewer before it is warm.
    """
    whole_number("epochs", epochs)
    if rows is not None:
        whole_number("rows", rows)
    chosen = resolve_device(device)
    shape = named_preset(preset)
    table = pairs.read_all()
    rows = rows or (GPU_ROWS if chosen.type == "cuda" else table.num_rows)
    copies = -(-rows // table.num_rows)
    table = pa.concat_tables([table] * copies).slice(0, rows)
    settings = recipe("default", batch_size=batch_size, negatives=negatives).for_pairs(table.num_rows)
    assert settings.batch_size is not None
    with tempfile.TemporaryDirectory() as directory, matmul_precision(chosen, settings):
        path = Path(directory) / "pairs.parquet"
        pq.write_table(table, path)
        data = TrainingData(
            read_pairs(path),
            hash_buckets=shape.hash_buckets,
            buffer_pairs=max(2 * settings.batch_size, table.num_rows // 16),
        )
        learner = Learner(TwoTower(shape), settings, chosen)
        try:
            speeds = [_epoch(learner, data, epoch) for epoch in range(epochs + 1)][1:]
            parts, floor = _parts(learner, table)
        finally:
            learner.close()
    return {
        "host": {
            **describe(),
            "device": device_name(str(chosen)),
            "cores": cpu_count(),
            "torch": torch.__version__,
        },
        "preset": preset,
        "pairs": table.num_rows,
        "batch_size": settings.batch_size,
        "negatives": settings.negatives,
        "guide": settings.guide,
        "pairs_per_s": float(np.median(speeds)),
        "spread": [min(speeds), max(speeds)],
        "step_ms": settings.batch_size / float(np.median(speeds)) * 1e3,
        "parts_ms": parts,
        "floor_ms": floor,
    }


def _epoch(learner: Learner, data: TrainingData, epoch: int) -> float:
    """Pairs per second of one epoch, reading included."""
    _wait(learner.device)
    began, pairs = time.perf_counter(), 0
    pin = learner.device.type == "cuda"
    threads = batch_threads(learner.device)
    for batch in epoch_batches(data.chunks(), learner.config, epoch, threads=threads, pin=pin):
        learner.step(batch.to(learner.device), lr_scale=0.1, progress=0.5)
        pairs += batch.pairs
    _wait(learner.device)
    return pairs / (time.perf_counter() - began)


def _parts(learner: Learner, table: pa.Table) -> tuple[dict[str, float], dict[str, float]]:
    """(milliseconds of each part of a step, the floor of those that the device does)."""
    times: dict[str, list[float]] = {}
    last = time.perf_counter()

    def mark(part: str) -> None:
        nonlocal last
        _wait(learner.device)
        now = time.perf_counter()
        times.setdefault(part, []).append((now - last) * 1e3)
        last = now

    settings, pin = learner.config, learner.device.type == "cuda"
    assert settings.batch_size is not None
    table = table.slice(0, STEPS * settings.batch_size)
    hash_buckets = learner.model.config.hash_buckets
    mark("")
    chunk = tokenize_pairs(table, hash_buckets)
    mark("tokenise")
    order = np.random.default_rng(0).permutation(len(chunk))
    floors = []
    bandwidth = _copy_rate(learner.device)
    for step, pairs in enumerate(np.array_split(order, max(1, len(order) // settings.batch_size))):
        mark("")
        host_batch = build(chunk, pairs, settings, (0, 0, step), pin=pin)
        mark("build")
        batch = host_batch.to(learner.device)
        mark("transfer")
        learner.step(batch, lr_scale=0.1, progress=0.5, mark=mark)
        floors.append(_floor(batch, learner))
    result = {name: float(np.median(values)) for name, values in times.items() if name}
    result["tokenise"] *= settings.batch_size / len(chunk)  # for one batch, with all cores
    floor = {name: float(np.median([f[name] for f in floors])) / bandwidth * 1e3 for name in floors[0]}
    return result, floor


def _floor(batch: StepBatch, learner: Learner) -> dict[str, int]:
    """Bytes that each part of the step must move."""
    f = 4 * learner.model.config.conv  # bytes of a text's vector; a row of a table has three times as many
    columns = batch.negatives.shape[1] + 1 if batch.negatives.shape[1] else len(batch.keyword)
    floor = Counter(loss=6 * 4 * len(batch.target) * columns)
    for side in (batch.query, batch.keyword):
        grams, words, touched = len(side.gram_ids), len(side.gram_offsets) - 1, len(side.rows)
        floor["forward"] += (grams + words + len(side.word_ids)) * 3 * f + 2 * len(side) * f
        floor["backward"] += (2 * words + grams + touched) * 3 * f + 8 * len(side) * f
        floor["update"] += 6 * touched * 3 * f
    return floor


def _copy_rate(device: torch.device) -> float:
    """Bytes per second, read and written, of a large copy."""
    source = torch.ones(1 << 26, device=device)  # 256 MB
    target = torch.empty_like(source)
    target.copy_(source)
    _wait(device)
    began = time.perf_counter()
    for _ in range(5):
        target.copy_(source)
    _wait(device)
    return 5 * 2 * source.nbytes / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
