"""Exhaustive, exact retrieval over learned binary embeddings.

Names are loaded on first use, so that `import rbegir` is instant and search never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rbegir.binarizer.estimator import Binarizer
    from rbegir.client.asynchronous import AsyncClient
    from rbegir.client.synchronous import Client
    from rbegir.cluster.client import Cluster
    from rbegir.codes.planes import Codes
    from rbegir.errors import RbegirError
    from rbegir.heads.encoder import SentenceEncoder
    from rbegir.heads.generations import Generations
    from rbegir.heads.upgrade import upgrade
    from rbegir.index.store import Index
    from rbegir.model.model import Model
    from rbegir.peers.index_rbe import IndexRBE
    from rbegir.search.hits import Hits
    from rbegir.training.trainer import train

_HOME = {
    "AsyncClient": "rbegir.client.asynchronous",
    "Binarizer": "rbegir.binarizer.estimator",
    "Client": "rbegir.client.synchronous",
    "Cluster": "rbegir.cluster.client",
    "Codes": "rbegir.codes.planes",
    "Generations": "rbegir.heads.generations",
    "Hits": "rbegir.search.hits",
    "Index": "rbegir.index.store",
    "IndexRBE": "rbegir.peers.index_rbe",
    "Model": "rbegir.model.model",
    "RbegirError": "rbegir.errors",
    "SentenceEncoder": "rbegir.heads.encoder",
    "train": "rbegir.training.trainer",
    "upgrade": "rbegir.heads.upgrade",
}

__all__ = [
    "AsyncClient",
    "Binarizer",
    "Client",
    "Cluster",
    "Codes",
    "Generations",
    "Hits",
    "Index",
    "IndexRBE",
    "Model",
    "RbegirError",
    "SentenceEncoder",
    "__version__",
    "train",
    "upgrade",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rbegir' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
