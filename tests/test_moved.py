"""Import paths of earlier releases."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from rbegir.moved import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_path_is_the_same_module(old: str) -> None:
    module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])
    assert module.__name__ == MOVED[old]
    assert module.__spec__ is not None
    assert module.__spec__.name == MOVED[old]


def test_the_class_in_saved_models() -> None:
    from rbegir.heads.sentence import RBEHead as old

    from rbegir.encode.sentence.head import RBEHead

    assert old is RBEHead
    assert f"{RBEHead.__module__}.{RBEHead.__name__}" == "rbegir.heads.sentence.RBEHead"


def test_paths_that_never_were_are_still_refused() -> None:
    for name in ("rbegir.heads.nothing", "rbegir.nothing", "rbegir.peers.nothing"):
        with pytest.raises(ModuleNotFoundError, match="nothing"):
            importlib.import_module(name)


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, rbegir; print([name for name in sys.modules if name.startswith('rbegir.')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['rbegir.moved']"
