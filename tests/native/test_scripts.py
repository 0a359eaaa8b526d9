"""The shell scripts of this folder name tests that exist, and fail when they cannot do their work."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = {path.name: path.read_text() for path in sorted(HERE.glob("*.sh"))}


def test_the_tests_that_are_named_exist() -> None:
    named = {name for text in SCRIPTS.values() for name in re.findall(r"tests/[\w/]+\.py(?:::\w+)?", text)}
    assert len(named) > 20
    for name in named:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert f"def {function}(" in (ROOT / path).read_text() or not function, name


def test_every_part_of_the_module_is_sanitised() -> None:
    parts = re.findall(r"^    bind_(\w+)\(m\);", (ROOT / "src/rbegir/_native/module.cpp").read_text(), re.M)
    assert len(parts) > 10
    assert [part for part in parts if f"[{part}]=" not in SCRIPTS["sanitize.sh"]] == []


def test_every_use_of_threads_is_sanitised() -> None:
    sources = (ROOT / "src/rbegir/_native").glob("*.?pp")
    users = {path.stem for path in sources if "in_parallel(" in path.read_text()} - {"parallel"}
    assert len(users) > 8
    listed = SCRIPTS["sanitize.sh"].partition("declare -A threaded=")[2].partition("\n)")[0]
    assert [user for user in sorted(users) if f"[{user}]=" not in listed] == []


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("avx2.sh", "qemu-user"),
        ("arm.sh", "g++ g++-aarch64-linux-gnu qemu-user"),
        ("clang.sh", "clang libc++-dev libc++abi-dev"),
        ("sanitize.sh", "g++ util-linux"),
    ],
)
def test_a_missing_tool_is_a_failure_that_names_its_packages(
    script: str, packages: str, tmp_path: Path
) -> None:
    for tool in ("dirname", "realpath", "bash", "env"):  # and nothing else
        found = next(Path(folder, tool) for folder in os.defpath.split(":") if Path(folder, tool).exists())
        (tmp_path / tool).symlink_to(found)
    done = subprocess.run(
        [tmp_path / "bash", HERE / script, tmp_path / "bash"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        rf"error: .* missing; install .* with: apt-get install {re.escape(packages)}\n", done.stderr
    )
    assert done.stdout == ""
