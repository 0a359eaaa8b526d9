"""Import paths of earlier releases, which saved models, deployments and scripts may still name.

`import rbegir.heads.sentence` gives the very module that lives at its new path, so a class reached by the old
path is the same class. Nothing is imported until an old path is asked for.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "rbegir.binarizer.rerank": "rbegir.encode.binarizer.vectors",
    "rbegir.binarizer.shape": "rbegir.encode.binarizer.binarizer",
    "rbegir.data": "rbegir.read.sample",
    "rbegir.encode.binarizer.rerank": "rbegir.encode.binarizer.vectors",
    "rbegir.encode.binarizer.rounding": "rbegir.encode.binarizer.learn",
    "rbegir.encode.binarizer.shape": "rbegir.encode.binarizer.binarizer",
    "rbegir.encode.clsm.shapes": "rbegir.encode.clsm.presets",
    "rbegir.encode.sentence.reference": "rbegir.encode.encoder",
    "rbegir.evaluate.labels": "rbegir.evaluate.evaluator",
    "rbegir.heads.cbow": "rbegir.lab.cbow",
    "rbegir.heads.hashing": "rbegir.lab.hashing",
    "rbegir.heads.sentence": "rbegir.encode.sentence.head",
    "rbegir.heads.upgrade": "rbegir.training.upgrade",
    "rbegir.index.exchange.arrays": "rbegir.index.exchange.files",
    "rbegir.index.exchange.tables": "rbegir.index.exchange.files",
    "rbegir.model.presets": "rbegir.encode.clsm.presets",
    "rbegir.peers.annbench": "rbegir.lab.annbench",
    "rbegir.peers.arrays": "rbegir.index.exchange.files",
    "rbegir.peers.faiss": "rbegir.index.exchange.faiss",
    "rbegir.peers.tables": "rbegir.index.exchange.files",
    "rbegir.reproduce.job": "rbegir.lab.reproduce.job",
    "rbegir.training.pairs": "rbegir.read.pairs",
    "rbegir.training.split": "rbegir.read.split",
}
PACKAGES = {f"rbegir.{gone}" for gone in ("binarizer", "heads", "model", "peers", "reproduce")}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of an old path by importing it from its new one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in MOVED:
            return importlib.machinery.ModuleSpec(name, self)
        if name in PACKAGES:
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back; it was executed when it was imported from its new path."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Look old paths up after all real ones."""
    sys.meta_path.append(Finder())
