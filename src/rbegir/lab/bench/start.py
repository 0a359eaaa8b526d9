"""How long a new process takes until its first answer: start Python, import, open an index, search it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rbegir.codes.planes import Codes
from rbegir.index.store import Index
from rbegir.lab.bench import host

N, PLANES = 64, 2
PROGRAM = """
import numpy as np, rbegir
with rbegir.Index.open({path!r}, read_only=True) as index:
    index.search_codes(np.ones((1, {n}), np.int8), k=10)
"""


def measure(keywords: int) -> dict[str, Any]:
    """Seconds with an index of so many random keywords, and of Python doing nothing beside it."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "start.rbe"
        with Index.create(path, n=N, keyword_planes=PLANES) as index:
            index.add_codes(Codes(rng.integers(0, 2**64, (PLANES, keywords, N // 64), dtype=np.uint64), N))
        first_answer = host.fresh_process_seconds(PROGRAM.format(path=str(path), n=N))
    return {
        "keywords": keywords,
        "first_answer_s": first_answer,
        "python_alone_s": host.fresh_process_seconds("pass"),
    }
