"""What rbegir is made of: pinned, hashed, licensed, and without a way to run what it reads."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "rbegir").rglob("*.py"))
RUNS_WHAT_IT_READS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "pty.spawn"}


def dangers(source: str) -> list[str]:
    """Imports and calls by which data could become code."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"imports {name}" for name in names if name.split(".")[0] in RUNS_WHAT_IT_READS]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if name in CALLS:
                found.append(f"calls {name}")
            if options.get("shell", "False") != "False" or options.get("allow_pickle", "False") != "False":
                found.append(f"calls {name} with shell or allow_pickle")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_nothing_that_is_read_can_run(path: Path) -> None:
    assert dangers(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from yaml import load",
        "import torch; torch.load('x')",
        "eval('1')",
        "import subprocess; subprocess.run('ls', shell=True)",
        "import numpy as np; np.load('x', allow_pickle=True)",
    ],
)
def test_the_search_for_dangers_finds_them(line: str) -> None:
    assert dangers(line)


def test_searching_an_index_imports_none_of_them() -> None:
    """The import graph itself: what opening an index and a model brings in."""
    import subprocess

    script = (
        "import sys; before = set(sys.modules); import rbegir.index.store, rbegir.encode.clsm.model\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(ast.literal_eval(done.stdout))
    assert "rbegir.index.store" in modules
    assert not modules & {"yaml", "dill", "joblib", "torch", "shelve"}


def _pins() -> dict[str, str]:
    pins: dict[str, str] = runpy.run_path(str(ROOT / "tools" / "lock.py"))["pins"]()
    return pins


def test_every_pin_has_its_hashes() -> None:
    lines = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()
    locked = {}
    for line in lines:
        if not line.startswith("#"):
            pin, *digests = line.split()
            assert digests, f"{pin} has no hash"
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in digests)
            name, version = pin.split("==")
            locked[name] = version
    assert locked == _pins(), "run: python tools/lock.py"


def test_the_list_of_licences_is_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "licences.py"))
    listed = tool["read"]()
    assert list(listed) == list(_pins()), "run: python tools/licences.py"
    installed = {name: tool["licence"](name) for name in listed}
    differ = {name for name, said in installed.items() if said is not None and said != listed[name]}
    assert differ <= _other_versions(differ), "run: python tools/licences.py"


def _other_versions(names: set[str]) -> set[str]:
    """Those of the packages that are installed in another version than the tested one."""
    from importlib import metadata

    return {name for name in names if metadata.version(name) != _pins()[name].split("+")[0]}


def test_what_rbegir_requires_binds_nobody() -> None:
    listed = {
        name.lower(): said
        for name, said in runpy.run_path(str(ROOT / "tools" / "licences.py"))["read"]().items()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [re.split(r"[<>=!\[ ;]", line)[0].lower() for line in project["dependencies"]]
    assert required
    for name in required:
        assert re.search(r"MIT|BSD|Apache|PSF|ISC", listed[name]), f"{name}: {listed[name]}"
        assert "GPL" not in listed[name]


def test_packages_under_the_gpl_are_explained() -> None:
    listed = runpy.run_path(str(ROOT / "tools" / "licences.py"))["read"]()
    bound = {name for name, said in listed.items() if said.startswith("GPL")}  # and nothing else to choose
    said = (ROOT / "SECURITY.md").read_text()
    assert bound
    assert all(f"`{name}`" in said for name in bound), bound


def test_a_build_uses_the_pinned_tools() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pins = {name.lower().replace("_", "-"): version for name, version in _pins().items()}
    for line in wanted:
        name, version = line.split("==")
        assert pins[name] == version


@pytest.mark.parametrize(
    ("report", "status", "words"),
    [
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0, "1 of 1 packages were looked up"),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}]}, 1, "a 1: CVE-1"),
        ({"dependencies": [{"name": "a", "skip_reason": "offline"}]}, 2, "nothing was checked"),
        (None, 2, "nothing was checked"),
    ],
)
def test_an_audit_says_what_it_could_check(report: Any, status: int, words: str) -> None:
    found, lines = runpy.run_path(str(ROOT / "tools" / "audit.py"))["verdict"](json.dumps(report))
    assert found == status
    assert any(words in line for line in lines)


def test_interpreters_that_make_no_wheel_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usable = runpy.run_path(str(ROOT / "tools" / "wheel.py"))["usable"]
    shim, old, absent = (tmp_path / name for name in ("python3.13", "python3.10", "absent"))
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    old.write_text("#!/bin/sh\necho 3 10\n")
    shim.chmod(0o755)
    old.chmod(0o755)
    found = usable([str(shim), str(old), sys.executable, str(absent)])
    assert found == [(sys.version_info[:2], sys.executable)]
    assert capsys.readouterr().err.splitlines() == [
        f"skipped {shim}: pyenv: python3.13: command not found",
        f"skipped {old}: it is older than Python 3.11",
        f"skipped {absent}: No such file or directory",
    ]
