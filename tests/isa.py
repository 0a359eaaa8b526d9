"""Instruction sets as parameters of tests.

One that this CPU lacks is reported as skipped, with the reason. RBEGIR_REQUIRE_ISA (names separated by
commas) turns that skip into a failure, for machines that are there to test an instruction set.
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


def _param(name: str, runs: bool, required: bool):
    if runs or required:  # required and missing: the test runs, and the kernels refuse the name
        return pytest.param(name, id=name)
    return pytest.param(name, id=name, marks=pytest.mark.skip(f"this CPU does not run {name}"))


def every_isa(*emulated: str) -> pytest.MarkDecorator:
    """Runs a test with `isa` set to every known instruction set, and to the emulated ones named here."""
    required = _required()
    params = [_param(name, runs, name in required) for name, runs in _core.isas().items()]
    return pytest.mark.parametrize("isa", [*params, *emulated])
