"""The command line as a whole: what it lists, how it fails, what it imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import rbegir
from rbegir import cli
from rbegir.cli.options import cluster_address, whole, wholes, with_cluster_address

MAIN = [sys.executable, "-c", "from rbegir.cli import main; main()"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MAIN, *words], capture_output=True, text=True)


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(f" {name} " in done.stdout for name in (*cli.COMMANDS, *cli.GROUPS))


def test_version() -> None:
    assert run("--version").stdout == f"rbegir {rbegir.__version__}\n"


@pytest.mark.parametrize("name", [*cli.COMMANDS, *cli.GROUPS])
def test_each_command_has_help(name: str) -> None:
    done = CliRunner().invoke(cli.build([name]), [name, "--help"])
    assert done.exit_code == 0
    assert f"{name} [OPTIONS]" in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rbegir ind", ["index"]),
        ("rbegir index bu", ["build"]),
        ("rbegir search x.rbe --min", ["--min-score"]),
    ],
)
def test_the_shell_completes(words: str, offered: list[str]) -> None:
    code = "import sys; sys.argv = ['rbegir']; from rbegir.cli import main; main()"
    asked = {"_RBEGIR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.stdout.split() == offered, done.stderr
    assert "--install-completion" in run("--help").stdout


def test_an_expected_failure_is_two_lines_and_no_traceback() -> None:
    done = run("search", "nowhere.rbe", "query")
    assert done.returncode == 1
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert "nowhere.rbe" in first
    assert second.startswith("hint: ")


def test_an_output_that_cannot_be_written_is_one_sentence() -> None:
    for words in (["--version"], ["missrate", "--candidates", "1e9", "--top", "10", "--per-thread", "256"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([*MAIN, *words], stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "error: the output cannot be read or written: No space left on device",
            "hint: check the disk and the path",
        ]


def test_characters_that_the_terminal_lacks_are_shown_by_number() -> None:
    words = ["missrate", "--candidates", "1e9", "--top", "10", "--per-thread", "256"]
    for encoding, shown in (("utf-8", "P(misses ≤ l) %"), ("ascii", r"P(misses \u2264 l) %")):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run([*MAIN, *words], env=environment, capture_output=True, check=True)
        assert shown in done.stdout.decode(encoding)
        assert done.stderr == b""


def test_control_c_ends_a_command_quietly_and_says_how_to_continue_it() -> None:
    code = (  # whoever runs the tests may ignore SIGINT, as a shell does for what it runs in the background
        "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import rbegir.cli as cli; build = cli.build\n"
        "cli.build = lambda names: (os.kill(os.getpid(), signal.SIGINT), build(names))[1]; cli.main()"
    )
    for command, told in (("--help", ""), ("train", "--resume"), ("join", "the same command continues")):
        done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (130, "")
        assert (told in done.stderr) if told else (done.stderr == "")


def test_an_unknown_command_is_refused() -> None:
    done = run("serach")
    assert done.returncode == 2
    assert "serach" in done.stderr


def test_search_imports_neither_torch_nor_pandas() -> None:
    code = (
        "import sys, rbegir.cli; rbegir.cli.build(['search']); import rbegir; rbegir.Index; rbegir.Model;"
        "print(sorted({'torch', 'pandas', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_whole_numbers() -> None:
    assert whole("12") == 12
    assert whole("1e9") == 10**9
    assert whole("123456789123456789") == 123456789123456789
    assert wholes("1e6,2") == [10**6, 2]
    for text in ("", "1.5", "many", "inf", "nan", "1,2"):
        with pytest.raises(typer.BadParameter, match="expected a whole number"):
            whole(text)


def test_public_names() -> None:
    assert set(rbegir.__all__) == set(dir(rbegir))
    for name in rbegir.__all__:
        assert getattr(rbegir, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rbegir.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["serve", "a.rbe"], ["serve", "a.rbe"]),
        (["serve", "a.rbe", "--cluster"], ["serve", "a.rbe", "--cluster", "any"]),
        (
            ["serve", "--cluster", "--port", "1", "a.rbe"],
            ["serve", "--cluster", "any", "--port", "1", "a.rbe"],
        ),
        (["serve", "a.rbe", "--cluster", "h:1"], ["serve", "a.rbe", "--cluster", "h:1"]),
    ],
)
def test_the_address_of_a_cluster_may_be_left_out(given: list[str], meant: list[str]) -> None:
    assert with_cluster_address(given) == meant
    assert (cluster_address("any"), cluster_address("h:1")) == (None, "h:1")
