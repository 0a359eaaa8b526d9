"""Random blocks of an index are damaged; exactly the keywords that are in none of them must come back.

What to expect is worked out here from the description of the format alone, keyword by keyword: `footprints`
reads the directory of a segment and says which 4 KiB blocks hold the bytes of which keyword. It shares no
code with what it checks.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rbegir.errors import CorruptError
from rbegir.index.store import Index
from torture.history import ENCODER
from torture.limits import Limits, memory

BLOCK = 4096
FOOTER = 36
WIDTH = {"int64": 8, "double": 8, "int8": 1}

Record = tuple[str, str, Any, Any, Any, Any]  # id, text and the attributes


def make(path: Path, rows: int = 2600) -> None:
    """Segments with listed rows and without, deletes as lists and as bits, nulls, texts of all lengths."""

    def add(index: Index, numbers: range, mark: str) -> None:
        index.upsert(
            [f"{mark} {i} {'é' * (i % 23)}" for i in numbers],
            [f"id-{i}" for i in numbers],
            {
                "price": [i if i % 3 else None for i in numbers],
                "lang": [("en", "de", None)[i % 3] for i in numbers],
                "sold": [None if i % 7 == 0 else i % 2 == 0 for i in numbers],
                "weight": [i / 8 for i in numbers],
            },
        )

    with Index.create(path, ENCODER, id_type="string") as index:
        add(index, range(rows), "first")
        index.delete([f"id-{i}" for i in range(0, rows, 9)])
        index.compact()  # one segment with listed rows
        add(index, range(rows, 2 * rows), "second")
        add(index, range(rows - 50, rows + 50), "third")  # replaces some of both
        index.delete([f"id-{i}" for i in range(rows + 100, 2 * rows, 2)])  # many: bits


def records(path: Path) -> dict[int, Record]:
    """Every live keyword by its row."""
    with Index.open(path, model=ENCODER, read_only=True) as index:
        hits = index.search("anything", k=100_000)
        found = {}
        for row, key, text, more in zip(
            hits.rows[0].tolist(), hits.ids[0], hits.texts[0], hits.attributes[0], strict=True
        ):
            found[row] = (key, text, more["price"], more["lang"], more["sold"], more["weight"])
        return found


def directory(data: bytes) -> tuple[int, int, dict[str, Any]]:
    """Where the directory of an intact file begins and ends, and its contents."""
    start, end = struct.unpack_from("<QQ", data, len(data) - FOOTER)
    return start, end, json.loads(data[start:end])


def footprints(data: bytes) -> list[set[int]]:
    """The blocks that hold the bytes of each keyword of a sound segment, in the order of positions."""
    _, _, said = directory(data)
    meta, sections = said["meta"], said["sections"]
    count, n = meta["count"], meta["n"]
    blocks: list[set[int]] = [set() for _ in range(count)]

    def need(position: int, section: str, start: int, stop: int) -> None:
        offset = sections[section][0]
        for byte in {offset + start, offset + stop - 1} if stop > start else ():
            blocks[position].add(byte // BLOCK)

    for i in range(count):
        for plane in range(meta["planes"]):
            for byte in range(n // 8):  # packed[plane, group, byte, lane]
                place = ((plane * -(-count // 64) + i // 64) * (n // 8) + byte) * 64 + i % 64
                need(i, "codes", place, place + 1)
        if "rows" in sections:
            need(i, "rows", 8 * i, 8 * i + 8)
        for number, (_, kind, nulls, wide) in enumerate(meta["columns"]):
            prefix = f"column.{number}"
            if nulls:
                need(i, f"{prefix}.validity", i // 8, i // 8 + 1)
            if kind == "string":
                form = "<qq" if wide else "<ii"
                at = struct.calcsize(form) // 2 * i
                need(i, f"{prefix}.offsets", at, at + struct.calcsize(form))
                start, stop = struct.unpack_from(form, data, sections[f"{prefix}.offsets"][0] + at)
                need(i, f"{prefix}.data", start, stop)  # texts here are shorter than a block
            elif kind == "bool":
                need(i, f"{prefix}.data", i // 8, i // 8 + 1)
            else:
                need(i, f"{prefix}.data", WIDTH[kind] * i, WIDTH[kind] * (i + 1))
    return blocks


class Specimen:
    """An intact index, and where its keywords lie in its files."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sound.rbe"
        make(self.path)
        self.files = {file.name: file.read_bytes() for file in self.path.iterdir() if file.name != "LOCK"}
        self.records = records(self.path)
        self.manifest = directory(self.files["MANIFEST"])[2]["meta"]
        self.rows: dict[str, list[int]] = {}  # of each segment, by position
        self.blocks: dict[str, list[set[int]]] = {}
        for name, *_ in self.manifest["segments"]:
            data = self.files[name]
            _, _, said = directory(data)
            meta = said["meta"]
            if "rows" in said["sections"]:
                at = said["sections"]["rows"][0]
                self.rows[name] = list(struct.unpack_from(f"<{meta['count']}q", data, at))
            else:
                self.rows[name] = list(range(meta["first_row"], meta["last_row"] + 1))
            self.blocks[name] = footprints(data)

    def damaged_segment(self, chance: random.Random, name: str) -> tuple[bytes, set[int]]:
        """The file with some bytes changed, and the live rows that are lost by that."""
        data = bytearray(self.files[name])
        start, end, _ = directory(self.files[name])
        bad: set[int] = set()
        everything = False
        for _ in range(chance.choice((1, 1, 2, 4, 9))):
            kind = chance.choices(
                ("body", "table", "footer", "directory", "cut", "grown"), (60, 15, 10, 5, 5, 5)
            )[0]
            if kind == "cut":
                del data[chance.randrange(1, len(data)) :]
                everything = True
                break
            if kind == "grown":
                data += chance.randbytes(chance.randint(1, 9000))
                break
            low, high = {
                "body": (0, start),
                "table": (end, len(self.files[name]) - FOOTER),
                "footer": (len(self.files[name]) - FOOTER, len(self.files[name])),
                "directory": (start, end),
            }[kind]
            at = chance.randrange(low, high)
            data[at] ^= chance.randint(1, 255)
            if kind in ("body", "directory"):
                bad.add(at // BLOCK)
            elif kind == "table":
                bad.add((at - end) // 4)
            everything |= kind == "directory"
        if not everything:  # the directory is proven by the footer, or by its blocks if the footer is gone
            sound = data[len(self.files[name]) - FOOTER :][:FOOTER] == self.files[name][-FOOTER:]
            everything = not sound and bool(bad & set(range(start // BLOCK, -(-end // BLOCK))))
        pairs = zip(self.rows[name], self.blocks[name], strict=True)
        lost = {row for row, blocks in pairs if row in self.records and (everything or blocks & bad)}
        return bytes(data), lost


def expect(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: found {str(found)[:300]}, expected {str(wanted)[:300]}")


def try_segments(specimen: Specimen, folder: Path, chance: random.Random) -> int:
    """Damage one or two segments; what comes back is what is intact. Returns how many keywords were lost."""
    lost: set[int] = set()
    path = _copy(specimen, folder)
    for name in chance.sample(sorted(specimen.rows), chance.choice((1, 1, 2))):
        data, gone = specimen.damaged_segment(chance, name)
        (path / name).write_bytes(data)
        lost |= gone
    report = Index.salvage(path, folder / "saved.rbe")
    wanted = {row: record for row, record in specimen.records.items() if row not in lost}
    expect(records(folder / "saved.rbe"), wanted, "keywords that came back")
    expect(report["lost"], len(lost), "keywords that the report calls lost")
    named = {
        row for part in report["segments"] for first, last in part["rows"] for row in range(first, last + 1)
    }
    expect(lost - named, set(), "lost rows that the report does not name")
    expect(named & set(wanted), set(), "rows that the report calls lost and that are there")
    _still_works(folder / "saved.rbe", len(wanted))
    return len(lost)


def try_deletes(specimen: Specimen, folder: Path, chance: random.Random) -> int:
    """Damage a delete file: no live keyword is lost, and no more deleted ones are back than reported."""
    path = _copy(specimen, folder)
    name = chance.choice([name for name in specimen.files if name.startswith("deletes")])
    data = bytearray(specimen.files[name])
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    (path / name).write_bytes(data)
    report = Index.salvage(path, folder / "saved.rbe")
    found = records(folder / "saved.rbe")
    expect({row: found.get(row) for row in specimen.records}, specimen.records, "keywords that were alive")
    back = len(found) - len(specimen.records)
    expect(
        back + report["replaced"],
        sum(part["unknown"] for part in report["deletes"]),
        "keywords that are back",
    )
    expect(len({record[0] for record in found.values()}), len(found), "ids that are there once")
    _still_works(folder / "saved.rbe", len(found))
    return 0


def try_manifest(specimen: Specimen, folder: Path, chance: random.Random) -> int:
    """Damage or remove the manifest: every keyword comes back, deleted ones do not."""
    path = _copy(specimen, folder)
    data = bytearray(specimen.files["MANIFEST"])
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    (path / "MANIFEST").write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
    if chance.random() < 0.2:
        (path / "MANIFEST").unlink()
    report = Index.salvage(path, folder / "saved.rbe")
    if report["manifest"] == "rebuilt":
        found = _without_model(folder / "saved.rbe")
        expect(found, {row: record[:2] for row, record in specimen.records.items()}, "keywords")
    else:
        expect(records(folder / "saved.rbe"), specimen.records, "keywords that came back")
    return 0


def _without_model(path: Path) -> dict[int, tuple[str, str]]:
    """The keywords of an index that has forgotten its model."""
    with Index.open(path, read_only=True) as index:
        hits = index.search_codes(ENCODER.encode_queries(["anything"]), k=100_000)
        return {
            row: (key, text)
            for row, key, text in zip(hits.rows[0].tolist(), hits.ids[0], hits.texts[0], strict=True)
        }


def _copy(specimen: Specimen, folder: Path) -> Path:
    for name in ("x.rbe", "saved.rbe"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(specimen.path, folder / "x.rbe")
    return folder / "x.rbe"


def _still_works(path: Path, count: int) -> None:
    with Index.open(path, model=ENCODER) as index:
        index.verify()
        index.upsert(["new"], ["new"])
        expect(len(index), count + 1, "keywords after one more")


TRIES = (try_segments, try_segments, try_segments, try_segments, try_deletes, try_manifest)


def attempts(seed: str, points: int, seconds: float) -> Iterator[tuple[str, int]]:
    """(what was damaged, keywords lost) of each try."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        specimen = Specimen(Path(name))
        for number in range(points):
            if time.monotonic() > end:
                return
            chance = random.Random(f"{seed}/{number}")
            one = TRIES[number % len(TRIES)]
            try:
                yield one.__name__, one(specimen, Path(name), chance)
            except (AssertionError, CorruptError) as error:
                raise AssertionError(f"try {seed}/{number} ({one.__name__}): {error}") from error


def run(limits: Limits) -> dict[str, Any]:
    tries = {one.__name__.removeprefix("try_"): 0 for one in TRIES}
    lost = 0
    wrong: list[str] = []
    try:
        for name, gone in attempts(str(limits.seed), limits.points, limits.seconds):
            tries[name.removeprefix("try_")] += 1
            lost += gone
    except AssertionError as error:
        wrong.append(str(error))
    return {"tries": tries, "keywords_damaged": lost, "losses": len(wrong), "first_losses": wrong}
