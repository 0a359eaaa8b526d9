"""Exhaustive, exact retrieval over learned binary embeddings.

Names are loaded on first use, so that `import rbegir` is instant and search never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rbegir.client.asynchronous import AsyncClient
    from rbegir.client.synchronous import Client
    from rbegir.codes.planes import Codes
    from rbegir.errors import RbegirError
    from rbegir.index.store import Index
    from rbegir.model.model import Model
    from rbegir.search.hits import Hits
    from rbegir.training.trainer import train

_HOME = {
    "AsyncClient": "rbegir.client.asynchronous",
    "Client": "rbegir.client.synchronous",
    "Codes": "rbegir.codes.planes",
    "Hits": "rbegir.search.hits",
    "Index": "rbegir.index.store",
    "Model": "rbegir.model.model",
    "RbegirError": "rbegir.errors",
    "train": "rbegir.training.trainer",
}

__all__ = [
    "AsyncClient",
    "Client",
    "Codes",
    "Hits",
    "Index",
    "Model",
    "RbegirError",
    "__version__",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rbegir' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
