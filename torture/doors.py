"""Every door through which untrusted bytes come in, as a function of bytes.

A door takes any bytes and either accepts them or raises an RbegirError; anything else is a finding. Files
of the index are sealed first (right checksums around wrong contents), because otherwise a fuzzer
would only learn that checksums work; `raw` is the same without the seal.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rbegir._native._core import crc32c, crc32c_blocks
from rbegir.codes.planes import Codes
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from rbegir.encode.directory import TensorFile
from rbegir.encode.directory import seal as seal_config
from rbegir.index.filter import Filter
from rbegir.index.format import BLOCK, FOOTER, HEADER, MAGIC, VERSION, File, FileKind
from rbegir.index.segment import CodeShape, Segment
from rbegir.index.snapshot import read_deletes
from rbegir.index.store import Index
from rbegir.read.pairs import read_pairs, read_texts
from torture.history import ENCODER, QUERY

SHAPE = CodeShape(64, 2)

Door = Callable[[bytes], None]


def seal(kind: FileKind, directory: bytes, body: bytes) -> bytes:
    """A file with sound checksums around any directory and contents."""
    head = HEADER.pack(MAGIC, VERSION, kind, BLOCK, 0)[:-4]
    data = (head + struct.pack("<I", crc32c(head))).ljust(64, b"\0") + body
    start = len(data) + -len(data) % 64
    data = data.ljust(start, b"\0") + directory
    blocks = np.arange(-(-len(data) // BLOCK), dtype=np.int64)
    table = crc32c_blocks(data, BLOCK, blocks).astype("<u4").tobytes()
    end = len(data)
    total = end + len(table) + FOOTER.size
    foot = FOOTER.pack(start, end, total, crc32c(directory), crc32c(table), 0)[:-4]
    return data + table + foot + struct.pack("<I", crc32c(foot))


def split(data: bytes) -> tuple[bytes, bytes]:
    """A directory and a body: what is before the first NUL, and the rest."""
    directory, _, body = data.partition(b"\0")
    return directory, body


def join(file: bytes) -> bytes:
    """The inverse for a real file."""
    start, end = struct.unpack_from("<QQ", file, len(file) - FOOTER.size)
    return file[start:end] + b"\0" + file[64:start]


class Doors:
    """All doors, over files in a scratch directory; `seeds` are sound inputs to start from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "x.rbe"
        self._make()
        self.doors: dict[str, Door] = {
            "raw": self.raw,
            "segment": self.segment,
            "manifest": self.manifest,
            "deletes": self.deletes,
            "salvage": self.salvage,
            "tensors": self.tensors,
            "config": self.config,
            "csv": lambda data: self.table(data, "csv"),
            "tsv": lambda data: self.table(data, "tsv"),
            "jsonl": lambda data: self.table(data, "jsonl"),
            "txt": lambda data: self.table(data, "txt"),
            "gz": lambda data: self.table(data, "csv.gz"),
            "parquet": lambda data: self.table(data, "parquet"),
            "where": self.where,
            "codes": self.codes,
        }
        self.seeds = self._seeds()

    def raw(self, data: bytes) -> None:
        """Any file where one of the index should be."""
        path = self._file("raw", data)
        File(path, FileKind(data[0] % 3 + 1) if data else FileKind.MANIFEST)

    def segment(self, data: bytes) -> None:
        path = self._file("segment", seal(FileKind.SEGMENT, *split(data)))
        segment = Segment(path, SHAPE)
        everything = np.arange(segment.count)
        segment.packed()
        segment.codes(everything[:100])
        segment.rows(everything)
        ids = segment.ids(everything[::7])
        segment.find(ids)
        for name in segment.types:
            segment.column(name, everything[::5])
            segment.whole(name)
        for error in segment.damage():
            raise error

    def manifest(self, data: bytes) -> None:
        (self.index / "MANIFEST").write_bytes(seal(FileKind.MANIFEST, *split(data)))
        with Index.open(self.index, model=ENCODER, read_only=True, threads=1) as index:
            index.search_codes(QUERY, 10)
            index.get([1])

    def deletes(self, data: bytes) -> None:
        file = File(self._file("deletes", seal(FileKind.DELETES, *split(data))), FileKind.DELETES)
        for name in list(file._sections)[:4]:
            for count, deleted in ((100, 3), (100, 50), (64, 64)):
                read_deletes(file, name, count, deleted)

    def salvage(self, data: bytes) -> None:
        """Bytes of an index overwritten at any places: salvage saves something or says that it cannot."""
        victim = self.folder / "victim.rbe"
        _clear(victim)
        victim.mkdir()
        names = sorted(self._sound)
        files = {name: bytearray(content) for name, content in self._sound.items()}
        for at in range(0, len(data) - 5, 6):
            which, place, value, cut = struct.unpack_from("<BHHB", data, at)
            content = files[names[which % len(names)]]
            if content:
                content[place % len(content)] = value % 256
                if cut == 255:
                    del content[place % len(content) :]
        for name, content in files.items():
            (victim / name).write_bytes(content)
        _clear(self.folder / "saved.rbe")
        Index.salvage(victim, self.folder / "saved.rbe")
        with Index.open(self.folder / "saved.rbe", read_only=True, threads=1) as index:
            index.verify()

    def tensors(self, data: bytes) -> None:
        file = TensorFile(self._file("tensors", data))
        for name in file.spans:
            file.array(name).sum()

    def config(self, data: bytes) -> None:
        """A config with a right checksum over anything."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if isinstance(body, dict):
            data = seal_config({key: value for key, value in body.items() if key != "crc32c"})
        (self.folder / "model" / checkpoint.CONFIG).write_bytes(data)
        Model.load(self.folder / "model")

    def table(self, data: bytes, suffix: str) -> None:
        path = self._file(f"table.{suffix}", gzip.compress(data, 1) if suffix.endswith("gz") else data)
        for batch in read_texts(path):
            batch.validate(full=True)
        for pairs in read_pairs(path):
            pairs.validate(full=True)

    def where(self, data: bytes) -> None:
        found = Filter(data.decode("utf-8", errors="replace"), self._state.types())
        for part in self._state.segments:
            found.passing(part.segment)
            part.segment.filters.clear()

    def codes(self, data: bytes) -> None:
        """Queries as arrays of any type and shape."""
        kinds = (np.int8, np.int16, np.uint8, np.int64, np.float32)
        kind = np.dtype(kinds[data[0] % len(kinds)] if data else np.int8)
        width = data[1] if len(data) > 1 else 64
        usable = data[2 : 2 + (len(data) - 2) // max(width * kind.itemsize, 1) * width * kind.itemsize]
        values = np.frombuffer(usable, kind).reshape(-1, width or 1) if width else np.frombuffer(usable, kind)
        self._open.search_codes(values, k=data[-1] if data else 0)
        words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64).reshape(1, -1, 1)
        self._open.search_codes(Codes(words, 64), 3)

    def _make(self) -> None:
        """Make the index and the model that the doors use."""
        with Index.create(self.index, ENCODER) as index:
            for start in (0, 60):
                numbers = range(start, start + 60)
                index.add(
                    [f"text {i}" for i in numbers],
                    [f"id-{i}" for i in numbers],
                    {
                        "price": pa.array([i if i % 3 else None for i in numbers], pa.int32()),
                        "lang": ["en", "de"] * 30,
                        "sold": [True, False, None] * 20,
                        "day": pa.array(list(numbers), pa.date32()),
                        "weight": [i / 3 for i in numbers],
                    },
                )
            index.delete(["id-3", "id-70"])
        self._sound = {p.name: p.read_bytes() for p in self.index.iterdir() if p.name != "LOCK"}
        self._open = Index.open(self.index, model=ENCODER, read_only=True, threads=1)
        self._state = self._open._state()
        config = ModelConfig(conv=1, hash_buckets=1)
        checkpoint.write(self.folder / "model", config, random_tensors(config))

    def _seeds(self) -> dict[str, list[bytes]]:
        rows = [
            {"id": i, "text": f"text {i}", "query": "q", "keyword": f"k{i}", "price": i / 2} for i in range(5)
        ]
        names = list(rows[0])
        lines = {
            mark: "\n".join([mark.join(names), *(mark.join(map(str, row.values())) for row in rows)]).encode()
            for mark in (",", "\t")
        }
        pq.write_table(pa.Table.from_pylist(rows), self.folder / "seed.parquet")
        weights = (self.folder / "model" / checkpoint.WEIGHTS).read_bytes()[:2000]
        return {
            "raw": [bytes([kind]) + content for kind, content in enumerate(self._sound.values())],
            "segment": [join(c) for name, c in self._sound.items() if name.startswith("segment")],
            "manifest": [join(self._sound["MANIFEST"])],
            "deletes": [join(c) for name, c in self._sound.items() if name.startswith("deletes")],
            "salvage": [bytes(6), struct.pack("<BHHB", 1, 3000, 7, 0) * 3],
            "tensors": [weights, struct.pack("<Q", 2) + b"{}"],
            "config": [(self.folder / "model" / checkpoint.CONFIG).read_bytes()],
            "csv": [lines[","], b'text,id\n"a ""b""",1\n'],
            "tsv": [lines["\t"]],
            "jsonl": ["\n".join(map(json.dumps, rows)).encode()],
            "txt": [b"one\ntwo\n\nthree"],
            "gz": [lines[","]],
            "parquet": [(self.folder / "seed.parquet").read_bytes()],
            "where": [
                b"price < 10 and lang = 'en'",
                b"day >= '2020-01-01' or not sold",
                b"id in ('a','b') and weight is null",
            ],
            "codes": [b"\0" + bytes([64]) + bytes(200)],
        }

    def _file(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


def _clear(path: Path) -> None:
    """Remove a directory of plain files."""
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def restore(doors: Doors) -> None:
    """Put back what a door has overwritten."""
    (doors.index / "MANIFEST").write_bytes(doors._sound["MANIFEST"])
