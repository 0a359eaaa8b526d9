"""The native module (module.cpp), and which instruction set its kernels use.

    avx512      AVX-512 F, BW, VL, DQ, VBMI, VBMI2, BITALG, VPOPCNTDQ and VNNI (Ice Lake, Zen 4 and later)
    avx512bw    AVX-512 F, BW, VL and DQ (Skylake-X, Cascade Lake)
    avx2        AVX2 with FMA, BMI 1 and 2
    neon        every 64-bit ARM CPU
    portable    plain C++

All kernels that are written for several take the best one that the CPU runs: the scan, MaxSim, the tower, the
search for codes, the Binarizer's products and the reranker's guide. The environment variable RBEGIR_ISA
forces another one for all of them.
"""

import os

from rbegir._native import _core
from rbegir.errors import InputError


def available_isas() -> list[str]:
    """The instruction sets that this CPU runs, the best first."""
    return [name for name, runs in _core.isas().items() if runs]


def choose_isa(asked: str | None = None, *, emulated: tuple[str, ...] = ()) -> str:
    """The instruction set to use: the one asked for, else that of RBEGIR_ISA, else the best available.

    `emulated` names instruction sets that a family of kernels also runs in portable code. They are never
    chosen unasked.
    """
    available = available_isas()
    name, source = asked, "isa"
    if not name:
        name, source = os.environ.get("RBEGIR_ISA"), "RBEGIR_ISA"
    if not name:
        return available[0]
    if name in available or name in emulated:
        return name
    known = name in _core.isas()
    raise InputError(
        f"{source} must name an instruction set {'that this CPU runs' if known else 'that is known'}, "
        f"got {name!r}",
        hint=f"choose one of {', '.join(available)}",
    )
