"""Every example in README.md and docs/ runs and prints what the page says.

A page is run from top to bottom in one directory, which holds what its first lines may assume:
`clicks.parquet` and `valid.parquet` (pairs), `titles.txt` (one text per line), `products.parquet` and
`more.parquet` (texts with ids and attributes) and, except on the pages that make it, `model/`.

    ```python       runs in one namespace per page
    ```output       what the block before it must print
    ```console      lines after `$ ` are commands; what follows is what they must print, or their error

`…` in an output stands for anything. Blocks inside HTML comments run too; readers do not see them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir import cli
from rbegir.encode.clsm.presets import PRESETS
from rbegir.read.pairs import read_pairs
from rbegir.read.sample import sample_path
from rbegir.training.trainer import train
from tests.reranking import short_fits
from tests.service import reserved_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITHOUT_EXAMPLES = {"api.md", "architecture.md", "benchmarks.md", "glossary.md", "reproduction-small.md"}
MAKES_MODEL = {"README.md", "train.md"}
BLOCK = re.compile(r"^```(python|console|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"\b(?:808\d|6380)\b")
SHELL = re.compile(r"[|&;<>$`*]|^[A-Z_]+=")


@pytest.fixture(scope="module", autouse=True)
def quick_training() -> Iterator[None]:
    """Presets with narrower towers, and short fits of rerankers: pages say nothing that depends on them."""
    with short_fits(), pytest.MonkeyPatch.context() as patch:
        for name, config in PRESETS.items():
            patch.setitem(PRESETS, name, replace(config, conv=64))
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of the pages, cut from the shipped sample, and a model trained on them for a moment."""
    folder = tmp_path_factory.mktemp("pages")
    for name, sample, count in (("clicks", "train", 2000), ("valid", "valid", 400)):
        table = pa.Table.from_batches(read_pairs(sample_path(sample)))
        pq.write_table(table.slice(0, count).select(["query", "keyword"]), folder / f"{name}.parquet")
    known = [pq.read_table(folder / f"{name}.parquet")["keyword"] for name in ("clicks", "valid")]
    titles = [title for column in known for title in column.unique().to_pylist()[:1000]]
    (folder / "titles.txt").write_text("\n".join(titles) + "\n")
    for name, prefix, texts in (("products", "p", titles), ("more", "m", titles[:20])):
        products = pa.table(
            {
                "id": [f"{prefix}{i}" for i in range(len(texts))],
                "text": texts,
                "price": [float(i % 200) for i in range(len(texts))],
                "lang": ["en" if i % 3 else "de" for i in range(len(texts))],
            }
        )
        pq.write_table(products, folder / f"{name}.parquet")
    train(
        folder / "clicks.parquet",
        valid=folder / "valid.parquet",
        out=folder / "model",
        epochs=1,
        progress=False,
    )
    return folder


class Command(NamedTuple):
    """A line after `$ ` and the lines that the page shows below it."""

    line: str
    shown: str


def commands(body: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", body.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        yield Command(line, shown.strip())


def same(shown: str, printed: str) -> bool:
    """Whether an output is the one of the page, where `…` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in re.sub(r"\s+", " ", shown.strip()).split("…"))
    return re.fullmatch(pattern, re.sub(r"\s+", " ", printed.strip()), re.DOTALL) is not None


class Terminal:
    """Runs the commands of a page. Services that it starts end with it, the last one first."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, command: Command) -> None:
        line = command.line
        plain = not SHELL.search(line)
        fails = command.shown.startswith("error:")
        if plain and line.startswith("rbegir serve ") and not fails:
            self._serve(line)
        elif line.startswith("ray start --head"):
            self._ray(line)
        elif line == "ray stop":  # the real one would end every Ray of the machine
            self.close()
        else:
            if line.startswith("make "):
                done = self._shell(f"make -n -C {ROOT} {line.removeprefix('make ')}")
            elif plain and line.startswith("rbegir ") and "--cluster" not in line:
                done = self._in_process(line)
            else:
                done = self._shell(line)
            assert (done.returncode != 0) == fails, f"{line}\n{done.stdout}\n{done.stderr}"
            printed = done.stderr if fails else done.stdout
            if command.shown:
                assert same(command.shown, printed), (
                    f"{line}\nprints\n{printed}\nthe page says\n{command.shown}"
                )

    def close(self) -> None:
        while self._started:
            process = self._started.pop()
            process.terminate()
            process.wait()

    def _shell(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True)

    def _in_process(self, line: str) -> subprocess.CompletedProcess[str]:
        """The command line without a new interpreter, which would spend seconds on imports."""
        out, err, status = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("default")
            patch.setattr(sys, "argv", shlex.split(line))
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    cli.main()
                except SystemExit as end:
                    status = int(end.code or 0)
        return subprocess.CompletedProcess(line, status, out.getvalue(), err.getvalue())

    def _start(self, line: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = Path(f"terminal-{len(self._started)}.log")
        with log.open("wb") as out:
            process = subprocess.Popen(["bash", "-c", f"exec {line}"], stdout=out, stderr=subprocess.STDOUT)
        self._started.append(process)
        return process, log

    def _serve(self, line: str) -> None:
        port = line.split("--port ")[1].split()[0]
        process, log = self._start(line)
        self._wait(process, log, lambda: _answers(f"http://127.0.0.1:{port}/readyz"))

    def _ray(self, line: str) -> None:
        process, log = self._start(f"{line} --include-dashboard=false --block")
        self._wait(process, log, lambda: "ray start --address" in log.read_text())

    def _wait(self, process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
        while not ready():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_page_run(
    page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text()
    ports = contextlib.ExitStack()
    for port in sorted(set(PORT.findall(text))):  # pages say 8080; several test runs on one machine must not
        text = text.replace(port, str(ports.enter_context(reserved_port())))
    blocks = BLOCK.findall(text)
    assert bool(blocks) != (page.name in WITHOUT_EXAMPLES), f"{page.name}: WITHOUT_EXAMPLES is wrong"
    work = tmp_path / "work"
    keep = shutil.ignore_patterns("model") if page.name in MAKES_MODEL else None
    shutil.copytree(files, work, ignore=keep, copy_function=os.link)
    monkeypatch.chdir(work)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # as in tests/cluster, whose process this may be
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    namespace: dict[str, object] = {"__name__": "page"}
    printed = ""
    with ports, contextlib.closing(Terminal()) as terminal:
        for kind, body in blocks:
            if kind == "console":
                for command in commands(body):
                    terminal.run(command)
            elif kind == "output":
                assert same(body, printed), f"the block prints\n{printed}\nthe page says\n{body}"
            else:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(body, str(page), "exec"), namespace)
                printed = out.getvalue()


@pytest.mark.parametrize(
    ("shown", "printed", "equal"),
    [
        ("[1 2]", "[1 2]\n", True),
        ("[1 2]", "[1 3]\n", False),
        ("recall …", "recall 0.97\n", True),
        ("recall …", "precision 0.97\n", False),
        ("a\n…\nz", "a\nb\nc\nz\n", True),
        ("a (b)", "a b", False),
    ],
)
def test_outputs_are_compared(shown: str, printed: str, equal: bool) -> None:
    assert same(shown, printed) is equal


def test_a_command_that_fails_or_prints_something_else_is_noticed() -> None:
    terminal = Terminal()
    terminal.run(Command("echo one", "one"))
    terminal.run(Command("rbegir missrate --candidates 0 --top 1 --per-thread 1", "error: …"))
    for command in (Command("echo one", "two"), Command("false", ""), Command("true", "error: …")):
        with pytest.raises(AssertionError):
            terminal.run(command)


def test_links_between_pages_lead_somewhere() -> None:
    made = {"http.md"}  # at each build of the site, see tools/site.py
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            there = (page.parent / target).exists() or target in made
            assert there, f"{page.name} links to {target}, which is not there"
