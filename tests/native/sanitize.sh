#!/usr/bin/env bash
# Builds the native module with the address and undefined-behaviour sanitisers and runs the kernel tests on it.
# Usage: tests/native/sanitize.sh [PYTHON] [pytest arguments …]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python}
shift || true
build=build/sanitize
package=$build/package
mkdir -p "$package"
rm -rf "$package/rbegir"
cp -r src/rbegir "$package/rbegir"
rm -f "$package"/rbegir/_native/*.so
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 -DRBEGIR_SANITIZE=ON \
    -DRBEGIR_OUTPUT="$PWD/$package/rbegir/_native" -DPython_EXECUTABLE="$(command -v "$python")" >/dev/null
cmake --build $build
# The interpreter is not instrumented: the runtime must be loaded first, and its own leaks are not ours.
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$PWD/$package"
"$python" -c "import rbegir._native._core as core; assert '$package' in core.__file__, core.__file__"
exec "$python" -m pytest -q -p no:cacheprovider "${@:-tests/search/test_cpu.py}"
