"""Every example in README.md and docs/ runs: Python blocks in one namespace a page, `$ ` lines in a shell.

A page starts in a directory that holds what its first lines may assume: `clicks.parquet` and
`valid.parquet` (pairs), `titles.txt` (one text a line), `products.parquet` (texts with attributes) and,
except on the pages that make it, `model/`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.read.pairs import read_pairs
from rbegir.read.sample import sample_path
from rbegir.training.trainer import train

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"\b(?:808\d|6380)\b")
MAKES_MODEL = {"README.md", "train.md"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of the pages, cut from the shipped sample, and a model trained on them for a moment."""
    folder = tmp_path_factory.mktemp("pages")
    for name, sample, count in (("clicks", "train", 4000), ("valid", "valid", 400)):
        table = pa.Table.from_batches(read_pairs(sample_path(sample)))
        pq.write_table(table.slice(0, count).select(["query", "keyword"]), folder / f"{name}.parquet")
    known = [pq.read_table(folder / f"{name}.parquet")["keyword"] for name in ("clicks", "valid")]
    titles = [title for column in known for title in column.unique().to_pylist()[:1000]]
    (folder / "titles.txt").write_text("\n".join(titles) + "\n")
    products = pa.table(
        {
            "id": [f"p{i}" for i in range(len(titles))],
            "text": titles,
            "price": [float(i % 200) for i in range(len(titles))],
            "lang": ["en" if i % 3 else "de" for i in range(len(titles))],
        }
    )
    pq.write_table(products, folder / "products.parquet")
    train(
        folder / "clicks.parquet",
        valid=folder / "valid.parquet",
        out=folder / "model",
        epochs=1,
        progress=False,
    )
    return folder


def free_port() -> int:
    """Pages say 8080; several test runs on one machine must not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rbegir` on the path of the shell lines is the one under test."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def run_console(body: str) -> None:
    for line in body.replace("\\\n", " ").splitlines():
        command = line.removeprefix("$ ")
        if command == line:
            continue  # output, shown to the reader
        if command.startswith("make "):
            command = f"make -n -C {ROOT} {command.removeprefix('make ')}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("shell")
def test_examples_of_page_run(
    page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    keep = shutil.ignore_patterns("model") if page.name in MAKES_MODEL else None
    shutil.copytree(files, work, ignore=keep, copy_function=os.link)
    monkeypatch.chdir(work)
    namespace: dict[str, object] = {"__name__": "page"}
    text = page.read_text()
    for port in sorted(set(PORT.findall(text))):
        text = text.replace(port, str(free_port()))
    blocks = BLOCK.findall(text)
    assert blocks or page.name in {"benchmarks.md"}, f"{page.name} has no example"
    try:
        for kind, body in blocks:
            if kind == "console":
                run_console(body)
            else:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(body, str(page), "exec"), namespace)
    finally:
        for left in work.glob("*.pid"):  # services that the page has started and, if all went well, ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(left.read_text()), signal.SIGTERM)  # it ends its own processes, too


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
