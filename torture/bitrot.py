"""Every single bit of every file of an index is flipped, and every file is cut at every byte.

    small index     all bits, all lengths
    larger index    random ones
    model           all bits of its config, random ones of its weights

Each damage must be noticed, or no answer may change:

    open       opening the index fails
    touch      a search, a filter, a look-up or the model fails when it comes to the damaged place
    verify     all answers are the right ones, and `verify` names the file: the byte is not used for answers

`verify` must name the file in all three cases. What is none of them is a loss. LOCK is left out: it is a note
for people that nobody reads.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rbegir.encode.clsm.model import Model
from rbegir.errors import FileError
from rbegir.index import writer
from rbegir.index.snapshot import damage
from rbegir.index.store import Index
from rbegir.lab.bench.serve import random_model
from torture.history import ENCODER
from torture.limits import Limits, memory

WORDS = ["red shoes", "blue shirt", "green tea", "city maps", "old clock", "warm coat", "glass bowl", "sea"]


def make_index(folder: Path, rows: int) -> Path:
    """An index with two segments, listed rows, deletes, nulls and every kind of column."""
    path = folder / "x.rbe"
    with Index.create(path, ENCODER) as index:
        for start, stop in ((0, rows // 2), (rows // 2, rows)):
            numbers = range(start, stop)
            index.add(
                [f"{WORDS[i % 8]} {i}" for i in numbers],
                [f"id-{i}" for i in numbers],
                {
                    "price": [i if i % 3 else None for i in numbers],
                    "lang": ["en" if i % 2 else "de" for i in numbers],
                    "sold": [i % 2 == 0 for i in numbers],
                },
            )
            if start == 0:
                index.delete(["id-3"])
                index.compact()
        index.delete([f"id-{i}" for i in range(1, rows, 4)])
    return path


def make_model(folder: Path, rows: int) -> Path:
    """A model of the smallest size."""
    return random_model(folder / "model", conv=1, hash_buckets=1)


def answers(index: Index, rows: int) -> list[Any]:
    """The answers to every kind of question, so that every byte that answers depend on is read."""
    plain = index.search(["red shoes", "clock"], k=rows)
    some = index.search("tea", k=5, where="price < 60 and lang = 'en' and not sold", deny=["id-0"])
    got = index.get([f"id-{i}" for i in range(0, rows, max(rows // 50, 1))])
    return [
        *(
            (hits.ids.tolist(), hits.keys.tolist(), hits.texts.tolist(), hits.attributes)
            for hits in (plain, some)
        ),
        got,
        len(index),
    ]


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.name != writer.LOCK)


class Patient:
    """An index, and its answers when it is intact."""

    make = staticmethod(make_index)

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self.rows = path, rows
        self.wanted = self.ask(["", ""])

    def noticed(self, name: str) -> str:
        """Where the damage of a file is noticed; an AssertionError if it is not."""
        stages = ["verify", "touch", "open"]
        try:
            assert self.ask(stages) == self.wanted, "another answer"
            stages.pop()
        except FileError as error:
            blamed = error.message
        else:
            blamed = name
        assert name in blamed, f"another file is blamed: {blamed}"
        found = self.verify()
        assert any(name in error.message for error in found), f"verify does not name it: {found}"
        return stages[-1]

    def ask(self, stages: list[str]) -> Any:
        """All answers; the last of `stages` is the current one."""
        with Index.open(self.path, model=ENCODER, read_only=True, threads=1) as index:
            stages.pop()
            return answers(index, self.rows)

    def verify(self) -> list[FileError]:
        try:
            return list(damage(self.path))
        except FileError as error:
            return [error]


class ModelPatient(Patient):
    """A model, and its codes when it is intact."""

    make = staticmethod(make_model)

    def ask(self, stages: list[str]) -> Any:
        model = Model.load(self.path, threads=1)
        stages.pop()
        codes = [encode(WORDS).planes.tolist() for encode in (model.encode_queries, model.encode_keywords)]
        return codes

    def verify(self) -> list[FileError]:
        try:
            Model.load(self.path).verify()
        except FileError as error:
            return [error]
        return []


@contextlib.contextmanager
def flipped(file: Path, bit: int) -> Iterator[None]:
    with open(file, "r+b", buffering=0) as handle:
        byte = os.pread(handle.fileno(), 1, bit // 8)
        os.pwrite(handle.fileno(), bytes([byte[0] ^ 1 << bit % 8]), bit // 8)
        try:
            yield
        finally:
            os.pwrite(handle.fileno(), byte, bit // 8)


@contextlib.contextmanager
def cut(file: Path, size: int) -> Iterator[None]:
    whole = file.read_bytes()
    os.truncate(file, size)
    try:
        yield
    finally:
        file.write_bytes(whole)


Place = tuple[str, str, int]  # flip or cut, file, bit or length


def every_place(path: Path, name: str = "*") -> list[Place]:
    places: list[Place] = []
    for file in files(path):
        size = file.stat().st_size
        if file.match(name):
            places += [("flip", file.name, bit) for bit in range(8 * size)]
            places += [("cut", file.name, length) for length in range(size)]
    return places


def some_places(path: Path, chance: random.Random, count: int) -> list[Place]:
    places: list[Place] = []
    every = files(path)
    for number in range(count):
        file = every[number % len(every)]
        size, name = file.stat().st_size, file.name
        flip = chance.random() < 0.8
        places.append(
            ("flip", name, chance.randrange(8 * size)) if flip else ("cut", name, chance.randrange(size))
        )
    return places


def examine(places: list[Place], patient: type[Patient], rows: int, seconds: float) -> dict[str, Any]:
    """Damage each place in turn in an index of our own: how many were noticed where."""
    end = time.monotonic() + seconds
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        one = patient(patient.make(Path(folder), rows), rows)
        for kind, name, where in places:
            if time.monotonic() > end or len(wrong) >= 5:
                break
            try:
                with (flipped if kind == "flip" else cut)(one.path / name, where):
                    seen[f"{kind} {one.noticed(name)}"] += 1
            except AssertionError as error:
                wrong.append(f"{kind} {where} of {name}: {error}")
    return {"seen": seen, "wrong": wrong}


SMALL, LARGE = 24, 3000  # keywords
WEIGHTS = 400  # places in the weights of a model


def run(limits: Limits) -> dict[str, Any]:
    chance = random.Random(limits.seed)
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        folder = Path(name)
        small = every_place(make_index(folder / "small", SMALL))
        large = some_places(
            make_index(folder / "large", LARGE), chance, max(limits.points - len(small), 1000)
        )
        model = make_model(folder, 0)
        of_model = every_place(model, "config.json")
        of_model += [place for place in some_places(model, chance, 2 * WEIGHTS) if place[1] != "config.json"]
    report: dict[str, Any] = {}
    wrong: list[str] = []
    end = time.monotonic() + limits.seconds
    patients: list[tuple[str, type[Patient], list[Place], int]] = [
        ("small index", Patient, small, SMALL),
        ("model", ModelPatient, of_model, 0),
        ("larger index", Patient, large, LARGE),
    ]
    for number, (name, patient, places, rows) in enumerate(patients):
        seen: Counter[str] = Counter()
        share = (end - time.monotonic()) / (len(patients) - number)  # time that one leaves goes to the next
        work = partial(examine, patient=patient, rows=rows, seconds=share)
        chance.shuffle(places)
        with limits.pool() as pool:
            for part in pool.map(work, [places[i :: limits.processes] for i in range(limits.processes)]):
                seen += part["seen"]
                wrong += part["wrong"]
        report[name] = {
            "keywords": rows,
            "places": len(places),
            "bits_flipped": sum(count for kind, count in seen.items() if kind.startswith("flip")),
            "files_cut": sum(count for kind, count in seen.items() if kind.startswith("cut")),
            "noticed_at": dict(sorted(seen.items())),
            "complete": sum(seen.values()) == len(places),
        }
    return {"patients": report, "losses": len(wrong), "first_losses": wrong[:5]}
