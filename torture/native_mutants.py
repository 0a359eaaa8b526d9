"""Faults put into the native scan on purpose, to show that `worlds` finds them.

    python -m torture.native_mutants            all of them; seconds and results until each is found

Each is one plausible mistake: a text of a source file and what stands there instead. The scan alone is
built from a copy of the sources and takes the place of the sound one while worlds are searched until a result
is wrong. A harness that passes the sound scan proves something only if it fails these.
"""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from rbegir._native import _core, available_isas
from rbegir.search.cpu import EMULATED
from torture.worlds import Still, cpu_backends

ROOT = Path(__file__).parents[1]
NATIVE = Path("src/rbegir/_native")
MODULE = """#include <nanobind/nanobind.h>
void bind_isa(nanobind::module_ &m);
void bind_scan(nanobind::module_ &m);
NB_MODULE(_core, m) {
    bind_isa(m);
    bind_scan(m);
}
"""


QUICK = ("avx2", "portable")  # compiled in a quarter of the time
LEFT_OUT = {
    "scan_avx512.cpp": ["AVX512"],
    "scan_avx512bw.cpp": ["AVX512BW"],
    "scan_emulated512.cpp": ["EMULATED512", "EMULATED512BW"],
}


class Mutant(NamedTuple):
    file: str
    sound: str
    faulty: str


MUTANTS = {
    "classes of norms that do not exist": Mutant(
        "scan_kernel.hpp",
        "return (top() * top() - 1) / 8 * n();",
        "return (planes == 1 ? 0 : planes == 2 ? 1 : planes == 3 ? 7 : 35) * n();",
    ),
    "the limit of one end of a bin for all of it": Mutant(
        "scan_query.cpp",
        "std::max(largest_deficit(threshold, first), largest_deficit(threshold, last))",
        "largest_deficit(threshold, first)",
    ),
    "the largest deficit one too small": Mutant("scan_query.cpp", "/ 2 + 1e-6)", "/ 2 - 1)"),
    "limits not raised by what halving rounds up": Mutant(
        "scan_query.cpp", "+ rounding);", "+ 0 * rounding);"
    ),
    "the left-out bit of the eighth word lost": Mutant(
        "scan_simd.hpp", "left_bit(rows), w % T::INDEX_BITS", "left_bit(rows), w % 8"
    ),
    "ties in the order in which they come": Mutant(
        "scan_best.hpp", "a.key > b.key : a.position < b.position", "a.key > b.key : a.position > b.position"
    ),
    "keywords behind a gathered one before it": Mutant(
        "scan_worker.cpp", "expand_gathered();  // first, so that positions come in ascending order", ""
    ),
    "ties with what another thread found lost": Mutant(
        "scan_best.hpp", "std::max(proven_, last_.key);", "std::max(proven_, last_.key + 1);"
    ),
    "the last bin as wide as the others": Mutant(
        "scan_query.cpp", "const int last = bin == bins - 1 ? shape_.max_class() : ", "const int last = "
    ),
    "the last bin of products wraps round": Mutant(
        "scan_dot.hpp", "group, 0, shift, DOT_BINS)", "group, 0, shift, DOT_BINS + 1)"
    ),
    "sums of 16 bits compared with their signs": Mutant(
        "scan_avx512bw.hpp", "_mm512_cmple_epu16_mask(odd", "_mm512_cmple_epi16_mask(odd"
    ),
    "groups behind the last stream left out": Mutant(
        "scan_exact.hpp",
        "for (size_t i = 0; i < all; ++i)",
        "for (size_t i = 0; i < (part ? 4 * part : all); ++i)",
    ),
    "no proof by count": Mutant(
        "scan_search.cpp",
        "if (found[i].size() < k && thresholds[i] > asked[i]->limit().floor) still_open",
        "if (found[i].empty() && thresholds[i] > asked[i]->limit().floor) still_open",
    ),
    "the first threshold below the floor": Mutant(
        "scan_search.cpp", "thresholds.push_back(query->limit().floor)", "thresholds.push_back(NO_THRESHOLD)"
    ),
    "hits above the page in its sample": Mutant(
        "scan_worker.cpp", "if (better(query.limit().before, hit)) best_[q].add(hit);", "best_[q].add(hit);"
    ),
    "the last hit of a page again": Mutant(
        "scan_worker.cpp",
        "if (better(query.limit().before, hit)) best_[q].add(hit);",
        "if (!better(hit, query.limit().before)) best_[q].add(hit);",
    ),
    "filters forgotten in blocks": Mutant(
        "scan_worker.cpp", "own_filters_ ? &passing_[q * task_groups_ + flushed_] : lanes_", "lanes_"
    ),
    "what filters pass in the first block, for all blocks": Mutant(
        "scan_worker.cpp", "flushed_ += slots_.size();", ""
    ),
    "only the groups that the first query wants transposed": Mutant(
        "scan_worker.cpp", "wanted[i] |= first[q * task_groups_ + i];", "wanted[i] |= q ? 0 : first[i];"
    ),
    "candidates of the first block scored for all blocks": Mutant(
        "scan_worker.cpp", "flushed_ += slots;", ""
    ),
    "only the first candidate of a group scored": Mutant("scan_512.hpp", "while (more) {", "while (false) {"),
    "groups behind the last eight never listed": Mutant("scan_512.hpp", "if (g < groups) {", "if (false) {"),
    "the last word of an odd number lost": Mutant(
        "scan_512.hpp", "const int w = both ? word + half : word;", "const int w = both ? word + half : 0;"
    ),
    "the first word of an odd number for the second": Mutant(
        "scan_512.hpp", "16 * j, both ? 16 : 8);", "16 * j, 16);"
    ),
    "filters forgotten in place": Mutant(
        "scan_worker.cpp",
        "events_[e].lanes & partition.candidates(g, filter)",
        "events_[e].lanes & partition.candidates(g)",
    ),
    "what halved values lose, forgotten": Mutant(
        "scan_query.cpp",
        "shape_.top() * std::max(value, 0);",
        "shape_.top() * std::max<int>(values_[d], 0) / scale_;",
    ),
    "halved values rounded away from zero": Mutant(
        "scan_query.cpp",
        "values_[d] / static_cast<int>(scale_);",
        "(values_[d] - (values_[d] < 0 && scale_ > 1)) / static_cast<int>(scale_);",
    ),
    "the least sum of products one too large": Mutant(
        "scan_query.cpp", "std::floor(largest / scale_);", "std::floor(largest / scale_) + 1;"
    ),
    "filters forgotten where queries are multiplied": Mutant(
        "scan_worker.cpp", "passing[g] & candidates[g]", "passing[g]"
    ),
    "a key that just reaches the threshold refused": Mutant(
        "scan_query.hpp", "* (1 - 1e-9);", "* (1 + 1e-9);"
    ),
}


def build(folder: Path, mutant: Mutant | None, *, quick: bool = False) -> Path:
    """A native module of the scan alone, with a fault or (None) without; if `quick`, of fewer kernels."""
    (folder / NATIVE).mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "CMakeLists.txt", folder)
    for path in (ROOT / NATIVE).iterdir():
        if path.suffix == ".hpp" or (path.suffix == ".cpp" and path.name.startswith(("scan", "isa"))):
            text = path.read_text()
            if mutant is not None and path.name == mutant.file:
                if text.count(mutant.sound) != 1:
                    raise ValueError(f"{path.name} must have {mutant.sound!r} once")
                text = text.replace(mutant.sound, mutant.faulty)
            if quick and path.name in LEFT_OUT:
                kernels = "".join(
                    f'extern const Kernel {name}{{"left out"}};' for name in LEFT_OUT[path.name]
                )
                text = f'#include "scan_kernel.hpp"\nnamespace rbegir::scan {{ {kernels} }}\n'
            copy = folder / NATIVE / path.name
            if not copy.exists() or copy.read_text() != text:  # what is the same need not be compiled again
                copy.write_text(text)
    (folder / NATIVE / "module.cpp").write_text(MODULE)
    made = folder / "build"
    settings = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]  # compiled fast
    if quick:  # all files as one: a third of the time, where nothing is compiled a second time
        settings += ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0"]
    python = f"-DPython_EXECUTABLE={sys.executable}"
    for command in (
        ["cmake", "-G", "Ninja", "-S", str(folder), "-B", str(made), python, *settings],
        ["cmake", "--build", str(made)],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / NATIVE / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"


def hunt(
    module: Path, seconds: float, isas: Sequence[str] = (*available_isas(), *EMULATED)
) -> dict[str, Any]:
    """Search worlds with the scan of another native module, until a result is wrong."""
    spec = importlib.util.spec_from_file_location(f"{module.parent.name}._core", module)
    assert spec is not None
    assert spec.loader is not None
    scan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scan)
    start, results = time.monotonic(), 0
    with mock.patch.object(_core, "scan_search", scan.scan_search):
        for number in itertools.count():
            world = Still(np.random.default_rng([1, number]))
            backends = cpu_backends(world.n, world.planes, isas)
            for way, count, same, asked in world.results(backends):
                results += count
                spent = time.monotonic() - start
                if not same or spent > seconds:
                    where = "" if same else f"{way}, {asked}"
                    return {"found": not same, "seconds": round(spent, 1), "results": results, "where": where}
    raise AssertionError("worlds do not end")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, mutant) in enumerate(MUTANTS.items()):
            module = build(Path(folder), mutant)
            copy = Path(folder) / str(number) / module.name  # a process loads a file once
            copy.parent.mkdir()
            shutil.copy(module, copy)
            print(name, hunt(copy, 600.0), flush=True)


if __name__ == "__main__":
    main()
