"""Instruction sets as parameters of tests.

One that this CPU lacks is reported as skipped once, by tests/native/test_isa.py, and not by every test that
would use it. RBEGIR_REQUIRE_ISA (names separated by commas) makes these tests run and fail, for machines that
are there to test an instruction set.
"""

from __future__ import annotations

import os

import pytest

from rbegir._native import _core


def _required() -> set[str]:
    names = {name.strip() for name in os.environ.get("RBEGIR_REQUIRE_ISA", "").split(",")} - {""}
    if unknown := names - set(_core.isas()):
        raise pytest.UsageError(f"RBEGIR_REQUIRE_ISA names {', '.join(sorted(unknown))}, which is not known")
    return names


def needs_isa(name: str) -> pytest.MarkDecorator:
    """Skips a test if the CPU lacks an instruction set. If the set is required, the test runs and fails."""
    missing = not _core.isas()[name] and name not in _required()
    return pytest.mark.skipif(missing, reason=f"this CPU does not run {name}")


def every_isa(*emulated: str) -> pytest.MarkDecorator:
    """Runs a test with `isa` set to every set that the CPU has or must have, and to these emulated ones."""
    names = [name for name, runs in _core.isas().items() if runs or name in _required()]
    return pytest.mark.parametrize("isa", [*names, *emulated])
