#!/usr/bin/env bash
# Builds the native module with sanitisers and runs the tests of its kernels on it: first with those for addresses and
# undefined behaviour, then with the one for data races.
# Usage: tests/native/sanitize.sh PYTHON [pytest arguments …]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath -s "$(command -v "${1:-python}")")
shift || true
export PATH="$(dirname "$python"):$PATH"  # cmake and ninja of that environment

kernels=(tests/native/test_native_scan.py tests/search/test_cpu.py tests/index/test_checksum.py
    tests/read/test_tokenizer.py tests/encode/clsm/test_inference.py tests/encode/binarizer/test_refine.py
    tests/encode/binarizer/test_one_code.py)

# The tests must load the sanitised module, wherever the package itself is installed.
runner='
import importlib.util, sys
name = "rbegir._native._core"
spec = importlib.util.spec_from_file_location(name, sys.argv[1])
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-o", "timeout=1200", *sys.argv[2:]]))
'

run() {  # NAME SANITISERS LIBRARIES pytest arguments …: the libraries must be loaded before the interpreter's
    local build=build/sanitize-$1 sanitisers=$2 libraries=$3
    shift 3
    echo "== $sanitisers"
    rm -f "$build"/module/*.so
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 -DRBEGIR_SANITIZE="$sanitisers" \
        -DRBEGIR_OUTPUT="$PWD/$build/module" -DPython_EXECUTABLE="$python" >/dev/null
    cmake --build "$build"
    rm -f "$build"/report*
    export {ASAN,TSAN}_OPTIONS="detect_leaks=0:log_path=$PWD/$build/report"  # leaks of the interpreter are not ours
    LD_PRELOAD=$(for library in $libraries libstdc++.so; do g++ -print-file-name="$library"; done | tr '\n' ' ') \
        setarch -R "$python" -c "$runner" "$build"/module/*.so "$@" || { cat "$build"/report* >&2; exit 1; }
}

# OpenBLAS is not built with the thread sanitiser, which then takes its threads for racing.
export UBSAN_OPTIONS=print_stacktrace=1 OPENBLAS_NUM_THREADS=1
if (($#)); then chosen=("$@"); else chosen=("${kernels[@]}" -k "not torch and not sizes and not worlds and not norms and not anything"); fi
run address address,undefined,float-cast-overflow "libasan.so libubsan.so" "${chosen[@]}"
if ((!$#)); then chosen=("${kernels[@]}" -k "(threads and not batches) or sample or all_shapes or all_steps"); fi
run thread thread libtsan.so "${chosen[@]}"
