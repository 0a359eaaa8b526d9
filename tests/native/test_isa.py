"""One choice of instruction set for all native kernels, and one override."""

from __future__ import annotations

import platform

import pytest

from rbegir._native import _core, available_isas, choose_isa
from rbegir.errors import InputError
from tests.isa import every_isa, needs_isa


def test_every_cpu_runs_portable_code() -> None:
    x86 = platform.machine() == "x86_64"
    assert list(_core.isas()) == [*(["avx512", "avx512bw", "avx2"] if x86 else ["neon"]), "portable"]
    assert available_isas()[-1] == "portable"


def test_the_best_is_chosen_unless_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RBEGIR_ISA", raising=False)
    assert choose_isa() == choose_isa("") == available_isas()[0]
    monkeypatch.setenv("RBEGIR_ISA", "portable")
    assert choose_isa() == "portable"
    assert choose_isa(available_isas()[0]) == available_isas()[0]


@pytest.mark.parametrize("source", ["isa", "RBEGIR_ISA"])
def test_refuses(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "isas", lambda: {"avx512": False, "avx2": True, "portable": True})

    def message(name: str) -> str:
        monkeypatch.setenv("RBEGIR_ISA", name)
        with pytest.raises(InputError) as caught:
            choose_isa(name if source == "isa" else None)
        return str(caught.value)

    hint = "(hint: choose one of avx2, portable)"
    assert message("avx512") == (
        f"{source} must name an instruction set that this CPU runs, got 'avx512' {hint}"
    )
    assert message("sse9") == f"{source} must name an instruction set that is known, got 'sse9' {hint}"


def test_emulated_sets_are_never_chosen_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RBEGIR_ISA", raising=False)
    assert choose_isa("toy", emulated=("toy",)) == "toy"
    assert choose_isa(emulated=("toy",)) == available_isas()[0]
    with pytest.raises(InputError, match="got 'toy'"):
        choose_isa("toy")


@pytest.mark.parametrize("isa", [pytest.param(name, marks=needs_isa(name)) for name in _core.isas()])
def test_kernels_of_every_instruction_set_are_tested(isa: str) -> None:
    assert isa in every_isa().args[1]


def test_a_missing_instruction_set_is_left_out_unless_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "isas", lambda: {"avx512": False, "avx2": False, "portable": True})
    monkeypatch.setenv("RBEGIR_REQUIRE_ISA", "")
    assert every_isa("toy").args[1] == ["portable", "toy"]
    assert needs_isa("avx512").args == (True,)
    assert needs_isa("avx512").kwargs == {"reason": "this CPU does not run avx512"}
    monkeypatch.setenv("RBEGIR_REQUIRE_ISA", "avx512, portable")
    assert every_isa("toy").args[1] == ["avx512", "portable", "toy"]
    assert needs_isa("avx512").args == (False,)
    monkeypatch.setenv("RBEGIR_REQUIRE_ISA", "avx3")
    with pytest.raises(pytest.UsageError, match="RBEGIR_REQUIRE_ISA names avx3, which is not known"):
        every_isa()
