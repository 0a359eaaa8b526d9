"""The emulated AVX-512 operations do what the instructions do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import rbegir._native
from tests.isa import needs_isa

FLAGS = (
    "-std=c++20 -O1 -mavx2 -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq"
    " -mavx512vbmi -mavx512vbmi2 -mavx512bitalg -mavx512vpopcntdq -mavx512vnni"
)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@needs_isa("avx512")
def test_operations(tmp_path: Path) -> None:
    source = Path(__file__).with_name("operations512.cpp")
    include = Path(rbegir._native.__file__).parent
    program = tmp_path / "operations"
    subprocess.run(["c++", *FLAGS.split(), f"-I{include}", source, "-o", program], check=True)
    found = subprocess.run([program], stdout=subprocess.PIPE, text=True)
    assert set(found.stdout.split()) == set()
    assert found.returncode == 0
