"""The committed table of character classes is what its generator writes, for the pinned version."""

from __future__ import annotations

import importlib.util
import sys
import unicodedata
from pathlib import Path

from rbegir._native import _core
from tests.read import reference

TOOL = Path(__file__).parents[2] / "tools" / "unicode_classes.py"


def test_the_table_is_the_generators() -> None:
    spec = importlib.util.spec_from_file_location("unicode_classes", TOOL)
    assert spec
    assert spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PINNED == _core.UNICODE_VERSION
    if unicodedata.unidata_version == tool.PINNED:
        assert tool.TARGET.read_text(encoding="utf-8") == tool.render()
    else:  # a later Python knows more characters, but forgets none
        assert len(reference.KINDS) == sys.maxunicode + 1
        forgotten = [c for c, kind in enumerate(reference.KINDS) if kind != "-" and tool.class_of(c) == 0]
        assert forgotten == []
