"""An index behind a URL opens like a local one: copied once, checked, continued after an interruption."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbegir.base import disk
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import random_tensors
from rbegir.errors import CorruptError, FileError, InputError
from rbegir.index.location import Location
from rbegir.index.snapshot import Snapshot
from rbegir.index.store import Index
from tests.reranking import CONFIG, make_model, some_texts


class Store(ThreadingHTTPServer):
    """Files of a directory over HTTP; notes what is asked for, and can be told to misbehave."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory
        self.asked: list[tuple[str, str | None]] = []  # name, Range
        self.ranges = True
        self.cut: int | None = None  # bytes of a segment after which a connection is lost
        self.status = 0  # answer everything with this
        self.absent = 404  # answer what is not there with this

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/x.rbe"

    def files(self) -> list[str]:
        """The names asked for since the last call."""
        names, self.asked = [name for name, _ in self.asked], []
        return names


class Handler(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        name, asked = self.path.removeprefix("/x.rbe/"), self.headers["Range"]
        self.server.asked.append((name, asked))
        path = self.server.directory / name
        if self.server.status or not path.is_file():
            self.send_error(self.server.status or self.server.absent)
            return
        content = path.read_bytes()
        start = int(asked[6:-1]) if asked and self.server.ranges else 0
        self.send_response(206 if asked and self.server.ranges else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.server.cut if name.endswith(".rbs") else None
        end = len(content) if cut is None else start + cut
        self.wfile.write(content[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A server of an index of 500 keywords in two segments, some of them deleted, with a Binarizer."""
    monkeypatch.setenv("RBEGIR_CACHE", str(tmp_path / "cache"))
    from rbegir import Binarizer

    vectors = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
    binarizer = Binarizer(16, n=64).fit(vectors)
    with Index.create(tmp_path / "x.rbe", binarizer) as index:
        index.add_codes(binarizer.encode_keywords(vectors[:300]), np.arange(300))
        index.add_codes(binarizer.encode_keywords(vectors[300:]), np.arange(300, 500))
        index.delete([3, 400])
    server = Store(tmp_path / "x.rbe")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def same(url: str, directory: Path) -> None:
    queries = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)
    with Index.open(url) as remote, Index.open(directory, read_only=True) as local:
        assert remote.info()["keywords"] == local.info()["keywords"]
        got, expected = remote.search(queries, 20), local.search(queries, 20)
        np.testing.assert_array_equal(got.ids, expected.ids)
        np.testing.assert_array_equal(got.scores, expected.scores)


def copies(store: Store) -> list[str]:
    """The names of all segments and deletes in the cache."""
    return sorted(path.name for path in Location.of(store.url).path.rglob("*.rb?"))


def test_a_url_gives_the_hits_of_the_directory_and_copies_only_what_is_new(store: Store) -> None:
    same(store.url, store.directory)
    first = store.files()
    assert {"MANIFEST", "segment-00000000.rbs", "model/config.json", "model/model.safetensors"} <= set(first)
    same(store.url, store.directory)
    configs = {"config.json", "encoder.json", "binarizer/config.json", "rerank/config.json"}
    assert set(store.files()) == {"MANIFEST", *(f"model/{name}" for name in configs)}
    with Index.open(store.directory) as index:
        index.delete([7])
    same(store.url, store.directory)
    assert [name for name in store.files() if name.startswith("deletes")]
    assert copies(store) == sorted(path.name for path in store.directory.glob("*.rb?"))


def test_a_copy_cannot_be_changed(store: Store) -> None:
    with Index.open(store.url) as index, pytest.raises(FileError, match="was opened read-only"):
        index.delete([1])


def test_lost_connections_are_renewed_where_they_ended(store: Store) -> None:
    store.cut = 3000
    same(store.url, store.directory)
    ranges = [asked for name, asked in store.asked if name == "segment-00000000.rbs"]
    assert ranges[:3] == [None, "bytes=3000-", "bytes=6000-"]


def test_an_interrupted_copy_is_continued_by_the_next_opening(store: Store) -> None:
    store.cut, store.ranges = 3000, False  # every attempt begins at 0 and ends at the same byte
    with pytest.raises(
        FileError, match=r"cannot copy segment-\d+\.rbs from http://127.0.0.1:\d+/x.rbe: it is shorter"
    ):
        Index.open(store.url)
    (part,) = Location.of(store.url).path.rglob(".*.part")
    assert part.stat().st_size == 3000
    store.cut, store.ranges = None, True
    store.asked.clear()
    same(store.url, store.directory)
    assert (part.name[1:].rpartition(".rbs")[0] + ".rbs", "bytes=3000-") in store.asked
    assert not part.exists()


def test_wrong_bytes_in_an_interrupted_copy_are_replaced(store: Store) -> None:
    store.cut, store.ranges = 3000, False
    with pytest.raises(FileError):
        Index.open(store.url)
    (part,) = Location.of(store.url).path.rglob(".*.part")
    part.write_bytes(b"x" * 3000)
    store.cut, store.ranges = None, True
    same(store.url, store.directory)


@pytest.mark.parametrize("name", ["segment-00000000.rbs", "model/model.safetensors"])
def test_damage_is_found_before_a_file_gets_its_name(store: Store, name: str) -> None:
    content = bytearray((store.directory / name).read_bytes())
    content[200] ^= 1
    (store.directory / name).write_bytes(content)
    with pytest.raises(CorruptError, match=rf"^the copy of http://.*/x.rbe/{name} is damaged: "):
        Index.open(store.url)
    assert not list(Location.of(store.url).path.rglob(Path(name).name))
    assert not list(Location.of(store.url).path.rglob("*.part"))


def test_what_the_server_refuses_is_said_in_one_sentence(store: Store) -> None:
    store.status = 403
    with pytest.raises(FileError, match=r"^cannot read MANIFEST from http://.*: the server answered 403"):
        Index.open(store.url)
    store.status = 404
    with pytest.raises(FileError, match=r"x\.rbe is not an rbegir index: it has no MANIFEST"):
        Index.open(store.url)
    with pytest.raises(InputError, match=r"^the URL of the index cannot be understood: Invalid IPv6 URL"):
        Location.of("https://user:secret@[bad/x")
    with pytest.raises(InputError, match=r"^gopher://host/x cannot be opened as a file system: .{1,200}$"):
        Index.open("gopher://user:secret@host/x").close()


def test_credentials_are_in_no_message(store: Store) -> None:
    with pytest.raises(FileError) as caught:
        Index.open("http://user:secret@127.0.0.1:1/x.rbe?token=secret")
    assert str(caught.value).startswith("cannot read MANIFEST from http://127.0.0.1:1/x.rbe: ")
    assert "secret" not in str(caught.value)


def _open(url: str, out: multiprocessing.Queue[int]) -> None:
    with Index.open(url) as index:
        out.put(len(index))


def test_processes_share_one_copy(store: Store) -> None:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [context.Process(target=_open, args=(store.url, out)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert [out.get() for _ in workers] == [498] * 3
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    names = [name for name in store.files() if re.fullmatch(r"segment.*", name)]
    assert sorted(names) == sorted(set(names))


def test_other_file_systems(store: Store, tmp_path: Path) -> None:
    """file:// is read in place; what pyarrow does not know goes through fsspec."""
    fsspec = pytest.importorskip("fsspec")
    same(store.directory.as_uri(), store.directory)
    memory = fsspec.filesystem("memory")
    memory.put(str(store.directory), "/bucket/x.rbe", recursive=True)
    try:
        shutil.copytree(store.directory, tmp_path / "kept.rbe")
        same("memory://bucket/x.rbe", tmp_path / "kept.rbe")
    finally:
        memory.rm("/bucket", recursive=True)


def test_the_command_line_takes_a_url(store: Store) -> None:
    """The index holds codes of vectors, so a text gets as far as its encoder."""
    command = [sys.executable, "-m", "rbegir", "search", store.url, "a text"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "an index made with a Binarizer is searched with vectors" in done.stderr
    assert "segment-00000000.rbs" in store.files()


def add_model(store: Store, folder: Path, seed: int = 0) -> None:
    """Replace the index by one of texts and a model with a reranker."""
    texts = some_texts(300)
    with Index.create(store.directory, make_model(folder, texts, seed), overwrite=True) as index:
        index.add(texts)


QUERIES = ["rivr bank", "new york city", "chess 1984"]


def same_texts(url: str, directory: Path) -> None:
    with Index.open(url) as remote, Index.open(directory, read_only=True) as local:
        for rerank in (None, True, False):
            got, wanted = (index.search(QUERIES, 9, rerank=rerank) for index in (remote, local))
            assert got.reranked == wanted.reranked == (rerank is not False)
            for name in ("ids", "scores", "code_scores", "texts"):
                np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))


def test_hits_of_a_url_are_reranked_as_those_of_the_directory(store: Store, tmp_path: Path) -> None:
    add_model(store, tmp_path / "model")
    same_texts(store.url, store.directory)
    store.files()
    same_texts(store.url, store.directory)
    assert [name for name in store.files() if not name.endswith(("MANIFEST", ".json"))] == []
    with Index.open(store.directory) as local:  # a reranker that is fitted again
        other = make_model(tmp_path / "other", some_texts(200, seed=1)).reranker
        assert other is not None
        other.write(local.path / "model", local.info()["fingerprint"])
    same_texts(store.url, store.directory)
    assert len(copies(store)) == 2  # one segment in two directories, copied once
    assert "segment-00000000.rbs" not in store.files()


def test_addresses_that_differ_in_the_query_have_their_own_copies(store: Store) -> None:
    one, two = (Location.of(f"{store.url}?version={number}") for number in (1, 2))
    assert len({one.path, two.path, Location.of(store.url).path}) == 3
    assert Location.of("https://user:secret@host/x?a=1").path == Location.of("https://host/x?a=1").path
    bucket = "s3://key:secret@bucket/x.rbe?scheme=http&endpoint_override=127.0.0.1:"
    assert Location.of(f"{bucket}1").path != Location.of(f"{bucket}2").path
    assert Location.of(f"{bucket}1").name == "s3://bucket/x.rbe"


def test_an_index_that_is_open_keeps_the_model_of_its_state(store: Store, tmp_path: Path) -> None:
    """Another process opens the address when the index behind it has been replaced."""
    add_model(store, tmp_path / "model")
    with Index.open(store.directory, read_only=True) as local:
        wanted = local.search(QUERIES, 9)
    with Index.open(store.url) as early:
        add_model(store, tmp_path / "other", seed=1)
        with Index.open(store.url) as late:
            got = early.search(QUERIES, 9)  # which loads the model
            np.testing.assert_array_equal(got.scores, wanted.scores)
            assert late.info()["fingerprint"] != early.info()["fingerprint"]
            same_texts(store.url, store.directory)
        early.refresh()
        np.testing.assert_array_equal(early.search(QUERIES, 9).scores, wanted.scores)


def test_an_index_that_is_replaced_while_its_model_is_read_is_read_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(store, tmp_path / "model")
    read = Location._read

    def then_replace(self: Location, name: str, *options: Any) -> bytes | None:
        content = read(self, name, *options)
        if name == "model/rerank/config.json":
            monkeypatch.undo()
            monkeypatch.setenv("RBEGIR_CACHE", str(tmp_path / "cache"))
            add_model(store, tmp_path / "other", seed=1)
        return content

    monkeypatch.setattr(Location, "_read", then_replace)
    same_texts(store.url, store.directory)


def test_openings_of_one_address_take_turns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one opening has copied stays until it is open, whatever another one finds behind the URL."""
    held: list[bool] = []
    read = Snapshot.open

    def opened(directory: Path, before: Snapshot | None = None) -> Snapshot:
        with pytest.raises(BlockingIOError):
            disk.open_locked(Location.of(store.url).path / ".lock", wait=False)
        held.append(True)
        return read(directory, before)

    monkeypatch.setattr(Snapshot, "open", opened)
    Index.open(store.url).close()
    assert held == [True]
    os.close(disk.open_locked(Location.of(store.url).path / ".lock", wait=False))


class Bucket(ThreadingHTTPServer):
    """A stand-in for S3: the files of a directory as objects of a bucket, by HEAD and by GET of ranges."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), BucketHandler)
        self.directory = directory
        self.asked: list[tuple[str, str, str | None]] = []  # method, name, Range
        self.refuses = False
        self.absent = 404  # answer what is not there with this

    @property
    def url(self) -> str:
        endpoint = f"scheme=http&region=none&endpoint_override=127.0.0.1:{self.server_port}"
        return f"s3://reader:secret@shop/x.rbe?{endpoint}"


class BucketHandler(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        name, asked = self.path.removeprefix("/shop/x.rbe/"), self.headers["Range"]
        self.server.asked.append((self.command, name, asked))
        signed = "AWS4-HMAC-SHA256 Credential=reader/" in self.headers["Authorization"]
        path = self.server.directory / name
        if self.server.refuses or not signed or not path.is_file():
            self.send_response(self.server.absent if signed and not self.server.refuses else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = path.read_bytes()
        first, last = 0, len(content) - 1
        if asked is not None:
            first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            last = min(last, len(content) - 1)
        self.send_response(200 if asked is None else 206)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[first : last + 1])

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def bucket_of(directory: Path) -> Iterator[Bucket]:
    server = Bucket(directory)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_object_store(store: Store, tmp_path: Path) -> None:
    with bucket_of(store.directory) as bucket:
        same(bucket.url, store.directory)
        read = {name for method, name, _ in bucket.asked if method == "GET"}
        assert {"MANIFEST", "segment-00000000.rbs", "model/config.json", "model/model.safetensors"} <= read
        assert all(asked for method, _, asked in bucket.asked if method == "GET")  # pyarrow reads ranges
        bucket.asked.clear()
        same(bucket.url, store.directory)
        assert {name for method, name, _ in bucket.asked if method == "GET"} == {
            "MANIFEST",
            "model/config.json",
        }
        with Index.open(store.directory) as index:
            index.delete([7])
        same(bucket.url, store.directory)
        add_model(store, tmp_path / "model")
        same_texts(bucket.url, store.directory)


def test_a_bucket_of_the_same_name_at_another_endpoint(store: Store, tmp_path: Path) -> None:
    shutil.copytree(store.directory, tmp_path / "y.rbe")
    with Index.open(tmp_path / "y.rbe") as other:
        other.delete(range(100))
    with bucket_of(store.directory) as one, bucket_of(tmp_path / "y.rbe") as two:
        with Index.open(one.url) as first:
            same(two.url, tmp_path / "y.rbe")
            first.refresh()
            assert len(first) == 498
        same(one.url, store.directory)


def test_damage_and_refusals_of_an_object_store(store: Store) -> None:
    segment = store.directory / "segment-00000000.rbs"
    content = segment.read_bytes()
    with bucket_of(store.directory) as bucket:
        segment.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        with pytest.raises(
            CorruptError, match=r"^the copy of s3://shop/x\.rbe/segment-00000000\.rbs is damaged"
        ):
            Index.open(bucket.url)
        segment.write_bytes(content[:-1])
        with pytest.raises(FileError, match=r"^cannot copy segment-00000000\.rbs from s3://shop/x\.rbe: "):
            Index.open(bucket.url)
        segment.write_bytes(content)
        same(bucket.url, store.directory)  # which goes on where the copy ended
        with pytest.raises(FileError, match=r"^s3://shop/y\.rbe is not an rbegir index: it has no MANIFEST"):
            Index.open(bucket.url.replace("x.rbe", "y.rbe"))
        bucket.refuses = True
        with pytest.raises(FileError, match=r"^cannot read MANIFEST from s3://shop/x\.rbe: ") as caught:
            Index.open(bucket.url)
        assert "secret" not in str(caught.value)


def test_a_store_that_refuses_what_is_absent(store: Store, tmp_path: Path) -> None:
    """S3 does so if the reader may not list the bucket."""
    model = store.directory / "model"
    with bucket_of(store.directory) as bucket:
        store.absent = bucket.absent = 403
        for url in (store.url, bucket.url):
            same(url, store.directory)
        add_model(store, tmp_path / "model")
        for url in (store.url, bucket.url):
            same_texts(url, store.directory)
        shutil.rmtree(model / "rerank")
        for fitted in (False, True):
            training = {"rerank": fitted, "guide": 1.0}
            checkpoint.write(model, CONFIG, random_tensors(CONFIG, 0), {"training": training})
            for url in (store.url, bucket.url):
                if fitted:
                    with pytest.raises(
                        FileError, match=r"^cannot read model/rerank/config\.json from .*: ."
                    ) as caught:
                        Index.open(url)
                    assert caught.value.hint == "allow reading all files of the index"
                    continue
                with Index.open(url) as index:
                    assert not index.search(QUERIES, 9).reranked
        shutil.rmtree(model)
        for url in (store.url, bucket.url):
            with pytest.raises(FileError, match=r"^cannot read model/config\.json from .*: ."):
                Index.open(url)
