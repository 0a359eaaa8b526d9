"""The command line where the cluster cannot be had: one error with the way out, in bounded time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rbegir
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from tests.index.fakes import HashEncoder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, and texts for another one."""
    made = tmp_path_factory.mktemp("command")
    with rbegir.Index.create(made / "ads.rbe", HashEncoder()) as index:
        index.add(["w1", "w2"])
    pq.write_table(pa.table({"text": ["w1", "w2"]}), made / "texts.parquet")
    config = ModelConfig(n=64, conv=4, hash_buckets=16, share_towers=True)
    checkpoint.write(made / "model", config, random_tensors(config))
    return made


def command(folder: Path, *arguments: str, path: Path | None = None) -> str:
    """The error output of a command that fails as it should: in words."""
    paths = [str(path)] if path else []
    done = subprocess.run(
        [sys.executable, "-m", "rbegir", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(ROOT / "src")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_nothing_at_the_address(folder: Path) -> None:
    said = command(folder, "serve", "ads.rbe", "--cluster", "127.0.0.1:1")
    assert "error: nothing answers at 127.0.0.1:1: connection refused" in said
    assert "hint: start Ray there with `ray start --head`" in said


def test_no_such_index(folder: Path) -> None:
    assert "is not an rbegir index" in command(folder, "serve", "none.rbe", "--cluster", "127.0.0.1:1")


def test_ray_is_not_installed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('No module named ray')\n")
    for arguments in (
        ("serve", "ads.rbe", "--cluster"),
        ("index", "build", "model", "texts.parquet", "--out", "new.rbe", "--cluster"),
    ):
        said = command(folder, *arguments, path=tmp_path)
        assert "error: a cluster needs Ray, which is not installed" in said
        assert "hint: pip install 'rbegir[cluster]'" in said
    assert not (folder / "new.rbe").exists()
