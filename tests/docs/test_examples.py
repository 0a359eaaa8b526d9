"""Every example in README.md and docs/ runs: Python blocks in one namespace a page, `$ ` lines in a shell.

A page starts in a directory that holds what its first lines may assume: `clicks.parquet`, `valid.parquet`
(pairs), `titles.txt` (one text a line), `products.parquet` (texts with attributes) and, on every page but the ones that make it, `model/`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAKES_MODEL = {"README.md", "train.md"}


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(kind, body) for kind, body in BLOCK.findall(page.read_text()) if kind in {"python", "console"}]
