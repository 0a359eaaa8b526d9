"""Exhaustive, exact retrieval over learned binary embeddings.

Names are loaded on first use, so that `import rbegir` is instant and search never imports torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rbegir import moved

__version__ = "0.1.0"
moved.install()

if TYPE_CHECKING:
    from rbegir.client.clients import AsyncClient as AsyncClient
    from rbegir.client.clients import Client as Client
    from rbegir.cluster.client import Cluster as Cluster
    from rbegir.codes.planes import Codes as Codes
    from rbegir.encode.binarizer.binarizer import Binarizer as Binarizer
    from rbegir.encode.clsm.model import Model as Model
    from rbegir.encode.sentence.encoder import SentenceEncoder as SentenceEncoder
    from rbegir.errors import RbegirError as RbegirError
    from rbegir.index.exchange.faiss import IndexRBE as IndexRBE
    from rbegir.index.generations import Generations as Generations
    from rbegir.index.mine import mine as mine
    from rbegir.index.store import Index as Index
    from rbegir.search.hits import Hits as Hits
    from rbegir.training.trainer import train as train
    from rbegir.training.upgrade import upgrade as upgrade

_HOME = {
    "AsyncClient": "rbegir.client.clients",
    "Binarizer": "rbegir.encode.binarizer.binarizer",
    "Client": "rbegir.client.clients",
    "Cluster": "rbegir.cluster.client",
    "Codes": "rbegir.codes.planes",
    "Generations": "rbegir.index.generations",
    "Hits": "rbegir.search.hits",
    "Index": "rbegir.index.store",
    "IndexRBE": "rbegir.index.exchange.faiss",
    "Model": "rbegir.encode.clsm.model",
    "RbegirError": "rbegir.errors",
    "SentenceEncoder": "rbegir.encode.sentence.encoder",
    "mine": "rbegir.index.mine",
    "train": "rbegir.training.trainer",
    "upgrade": "rbegir.training.upgrade",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rbegir' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
