"""schemathesis against the OpenAPI document, over a socket, with every check that it has.

Whatever fits the document is accepted, whatever does not is refused, and every answer has a documented
status, media type, headers and body. The seed is fixed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rbegir
from tests.serve.conftest import listening

HERE = Path(__file__).parent


def test_the_service_keeps_its_contract(index_path: Path, tmp_path: Path) -> None:
    for name in ("contract.toml", "contract_formats.py"):  # it leaves a cache where it runs
        shutil.copy(HERE / name, tmp_path)
    limits = {"max_k": 20, "max_queries": 8, "max_keywords": 100, "max_text_chars": 64, "max_where_chars": 64}
    with listening(rbegir.Index.open(index_path), **limits) as address:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", "contract.toml"),
                *("run", f"{address}/openapi.json", "--phases", "examples,coverage,fuzzing"),
                *("--checks", "all", "--max-examples", "15", "--seed", "1", "--continue-on-failure"),
                *("--suppress-health-check", "all", "--warnings", "off"),
            ],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
