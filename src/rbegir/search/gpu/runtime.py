"""Where the kernels run: compiled on a card, or interpreted on the CPU (TRITON_INTERPRET=1), as in tests."""

from __future__ import annotations

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
