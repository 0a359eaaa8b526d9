"""A small real collection of documents with natural classes: the docstrings of three installed packages.

NumPy, SciPy and scikit-learn explain some five thousand functions and classes in their sources, and the
subpackage a docstring comes from (`scipy.signal`, `sklearn.cluster`) says what it is about. Sources are
parsed, never imported or run. The collection is that of the installed versions; a result made from it names
them.
"""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rbegir.errors import MissingExtraError

PACKAGES = ("numpy", "scipy", "sklearn")
LEFT_OUT = {"tests", "_lib", "externals", "distutils", "f2py"}
MIN_WORDS = 30
MIN_DOCUMENTS = 40  # of a class


class Document(NamedTuple):
    """A docstring, and the subpackage it is from."""

    text: str
    label: str


def docstrings(packages: Sequence[str] = PACKAGES) -> list[Document]:
    """The docstrings of packages, of subpackages with at least MIN_DOCUMENTS of them; equal texts once."""
    found: dict[str, Document] = {}
    for package in packages:
        for document in _of_package(package):
            found.setdefault(document.text, document)
    sizes = Counter(document.label for document in found.values())
    return [document for document in found.values() if sizes[document.label] >= MIN_DOCUMENTS]


def _of_package(package: str) -> Iterator[Document]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            f"the docstrings of {package} need {package}", hint="pip install 'rbegir[train]'"
        )
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if len(parts) < 2 or LEFT_OUT & set(parts):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                text = ast.get_docstring(node) or ""
                if len(text.split()) >= MIN_WORDS:
                    yield Document(text, f"{package}.{parts[0].lstrip('_')}")
