#!/usr/bin/env bash
# Compiles the native module with clang and libc++, the compiler and library of macOS, without linking it. Then looks for
# the instruction in functions that are compiled for a newer CPU than the rest: a compiler may drop such an attribute.
# Usage: tests/native/clang.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath -s "$(command -v "${1:-python}")")
export PATH="$(dirname "$python"):$PATH"  # cmake and ninja of that environment
if ! echo '#include <vector>' | clang++ -stdlib=libc++ -fsyntax-only -x c++ - 2>/dev/null; then
    echo "error: clang++ with libc++ is missing; install both with: apt-get install clang libc++-dev libc++abi-dev" >&2
    exit 1
fi

build=build/clang
cmake -S . -B $build -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_CXX_FLAGS=-stdlib=libc++ -DPython_EXECUTABLE="$python" \
    -DRBEGIR_OUTPUT="$PWD/$build/module" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
"$python" - $build/compile_commands.json <<'PYTHON'
import json, shlex, subprocess, sys
ours = [entry for entry in json.load(open(sys.argv[1])) if "/_native/" in entry["file"]]
failed = 0
for entry in ours:
    words = shlex.split(entry["command"])
    words[words.index("-o") : words.index("-o") + 2] = ["-fsyntax-only", "-Werror"]
    failed += subprocess.run(words, cwd=entry["directory"]).returncode != 0
print(len(ours) - failed, "files compile,", failed, "do not")
sys.exit(failed != 0)
PYTHON

case $(uname -m) in
x86_64) instruction=crc32q ;;
aarch64) instruction=crc32cx ;;
esac
command=$("$python" -c 'import json, sys; print(*(e["command"].partition(" -o ")[0] for e in json.load(open(sys.argv[1])) if e["file"].endswith("/checksum.cpp")))' \
    $build/compile_commands.json)
$command -S -o $build/checksum.s src/rbegir/_native/checksum.cpp
grep -q "$instruction" $build/checksum.s || { echo "the CRC instruction is not used" >&2; exit 1; }
echo "the CRC instruction is used"
