"""Native threads where the system gives none, and processes that fork while they work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rbegir._native

FEW = """
import resource, threading
import numpy as np
from rbegir._native import _core

rng = np.random.default_rng(0)
a, b = rng.standard_normal((2, 500, 64), np.float32)
gram = np.ascontiguousarray(b.T @ b)
texts = _core.Texts()
texts.add_strings(tuple(f"w{i} x{i % 7}" for i in range(5000)))
packed = rng.integers(0, 256, 8 * 64 * 5000, np.uint8)
values = rng.integers(0, 8, (50, 64)).astype(np.int16) * 2 - 7

def everything(threads):
    codes = np.sign(a)
    _core.refine(a, b, gram, codes, a, 1, 5, 3, threads, 1, "portable")
    yield codes
    yield _core.product(a, gram, threads, "portable")
    yield from _core.tokenize(texts, 50, threads)
    yield from _core.scan_search(
        [(packed, 64 * 5000, None, ())], values, 10, None, planes=1, threads=threads, isa="portable"
    )

alone = list(everything(1))
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))  # half a thread's stack
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    print(error)
for one, many in zip(alone, everything(8), strict=True):
    assert np.array_equal(one, many)
print("done")
"""

NO_MEMORY = """
#include <cstdio>
#include <cstdlib>
#include "parallel.hpp"

static std::atomic<int> allowed{1000};
void *operator new(std::size_t size) {
    if (allowed-- > 0) return std::malloc(size);
    throw std::bad_alloc();
}
void operator delete(void *p) noexcept { std::free(p); }
void operator delete(void *p, std::size_t) noexcept { std::free(p); }

int main() {
    for (int threads = 0; threads < 8; ++threads) {
        std::atomic<int> done[8]{};
        allowed = 2 + threads;  // the two arrays of in_parallel, then one allocation per thread
        rbegir::in_parallel(8, [&](std::size_t part) { ++done[part]; });
        std::printf(allowed < 0 || threads == 7 ? "" : "memory was left\\n");
        for (const auto &times : done) std::printf("%d", times.load());
    }
}
"""

FORK = """
import os, threading
import numpy as np
from rbegir.encode.clsm.sides import NativeSide
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.encode.clsm.presets import random_tensors

config = ModelConfig(conv=8, hash_buckets=50)
side = NativeSide(config, "query", random_tensors(config).__getitem__, threads=2)
texts = [f"a{i} b{i % 7}" for i in range(300)]
expected = side.planes(texts)
stop = threading.Event()

def work():
    while not stop.is_set():
        side.planes(texts[:1])

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(30):
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(side.planes(texts), expected) else 1)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
for thread in threads:
    thread.join()
print(sorted(set(codes)))
"""


def _run(script: str) -> str:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # its threads would take part of the limits
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_work_is_done_by_fewer_threads_if_the_system_gives_fewer() -> None:
    assert _run(FEW) == "can't start new thread\ndone\n"


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_work_is_done_by_fewer_threads_if_there_is_no_memory_to_start_one(tmp_path: Path) -> None:
    include = Path(rbegir._native.__file__).parent
    command = ["c++", "-std=c++20", "-pthread", f"-I{include}", "-xc++", "-", "-o", tmp_path / "program"]
    subprocess.run(command, input=NO_MEMORY, text=True, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1" * 64, "")


def test_children_of_a_busy_process_can_encode() -> None:
    assert _run(FORK) == "[0]\n"
