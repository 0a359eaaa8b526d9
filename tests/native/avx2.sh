#!/usr/bin/env bash
# Runs the tests of kernels, codes, encoders and searches on an emulated CPU with AVX2 but without AVX-512: a Haswell by
# qemu. Processes that a test starts run on the real CPU.
# Usage: tests/native/avx2.sh PYTHON [pytest options …]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath -s "$(command -v "${1:-python}")")
command -v qemu-x86_64 >/dev/null ||
    { echo "error: qemu-x86_64 is missing; install it with: apt-get install qemu-user" >&2; exit 1; }

export NPY_DISABLE_CPU_FEATURES=X86_V3  # NumPy's own AVX2 code: qemu 7.2 sorts wrongly with it
emulated=(qemu-x86_64 -cpu Haswell "$python")
sets=$("${emulated[@]}" -c 'from rbegir._native import available_isas; print(*available_isas())' 2>/dev/null)
[[ $sets == "avx2 portable" ]] || { echo "error: the emulated CPU runs ${sets:-nothing}" >&2; exit 1; }
"${emulated[@]}" -m pytest -p no:cacheprovider "${@:2}" tests/native tests/codes tests/search tests/encode/binarizer \
    tests/encode/clsm --ignore tests/search/gpu 2> >(grep -v "warning: TCG doesn't support" >&2)
