"""Changes and searches while a cluster compacts its index: the same results as on one machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import rbegir
from rbegir.cluster import pool
from tests.index.fakes import HashEncoder

from .conftest import PATIENT, equal, grow, until


def hold_compactions(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """In the process of the writer, a compaction makes the file `begun` and goes on when there is `go`."""
    begun, go = folder / "begun", folder / "go"

    class HeldWriter(pool.WriterActor):
        def __init__(self, path: str) -> None:
            import time

            from rbegir.index.writer import Compaction

            super().__init__(path)
            write = Compaction.write

            def held(self: Compaction, *arguments: Any) -> bool:
                begun.touch()
                while not go.exists():
                    time.sleep(0.01)
                return write(self, *arguments)

            Compaction.write = held  # type: ignore[method-assign]

    monkeypatch.setattr(pool, "WriterActor", HeldWriter)


def test_changes_during_a_compaction(
    nodes: Any, tmp_path: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_compactions(monkeypatch, tmp_path)
    ours, theirs = tmp_path / "ours.rbe", tmp_path / "theirs.rbe"
    for path in (ours, theirs):
        grow(path, encoder, sizes=[400, 90, 30])
    codes = encoder.encode_queries(["w1 w2", "w5"])
    opened: dict[str, Any] = {"devices": 2, "model": encoder, "deadline": PATIENT}
    with (
        rbegir.Cluster.open(ours, **opened) as cluster,
        rbegir.Cluster.open(ours, **opened) as second,
        rbegir.Index.open(theirs, model=encoder) as index,
    ):
        compactions = [threading.Thread(target=client.compact, daemon=True) for client in (cluster, second)]
        compactions[0].start()
        until((tmp_path / "begun").exists)
        compactions[1].start()
        for client, change in (
            (cluster, lambda on: on.add(["w1 w2", "w1"], [5000, 5001], {"price": [1.0, 2.0]}).tolist()),
            (cluster, lambda on: on.upsert(["w5 w5", "w1 w2"], [1001, 1450]).tolist()),
            (second, lambda on: on.delete([5001, 1002, 77])),
            (second, lambda on: on.update([1003], {"price": [1e6]})),
            (cluster, lambda on: on.delete(where="price < 30")),
        ):
            client.refresh()
            assert change(client) == change(index)
            equal(client.search_codes(codes, 600), index.search_codes(codes, 600))
            assert compactions[0].is_alive()
        (tmp_path / "go").touch()
        for compaction in compactions:
            compaction.join()
        index.compact()
        for client in (cluster, second):
            client.refresh()
            equal(client.search_codes(codes, 600), index.search_codes(codes, 600))
        client.delete([1450])
    with rbegir.Index.open(ours, model=encoder) as compacted:
        compacted.verify()
        index = rbegir.Index.open(theirs, model=encoder)
        index.delete([1450])
        assert list(compacted.rows()) == list(index.rows())
        assert compacted.info()["segments"] < 4


def test_closing_waits_for_a_compaction(
    nodes: Any, tmp_path: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_compactions(monkeypatch, tmp_path)
    grow(tmp_path / "x.rbe", encoder, sizes=[300, 90])
    cluster = rbegir.Cluster.open(tmp_path / "x.rbe", devices=1, model=encoder, deadline=PATIENT)
    wrong: list[BaseException] = []

    def compact() -> None:
        try:
            cluster.compact()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, daemon=True) for work in (compact, cluster.close)]
    threads[0].start()
    until((tmp_path / "begun").exists)
    threads[1].start()
    assert len(cluster.search("w1")[0]) == 10
    (tmp_path / "go").touch()
    for thread in threads:
        thread.join()
    assert wrong == []
    with rbegir.Index.open(tmp_path / "x.rbe") as index:
        assert index.info()["deleted"] == 0
