#!/usr/bin/env bash
# Builds the kernels for aarch64 and for this machine, runs the former under qemu, and compares the results of both.
# Then compiles the rest of the module for aarch64, without linking it.
# Usage: tests/native/arm.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath -s "$(command -v "${1:-python}")")
packages="g++ g++-aarch64-linux-gnu qemu-user"
for tool in g++ aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v "$tool" >/dev/null ||
        { echo "error: $tool is missing; install the tools of this check with: apt-get install $packages" >&2; exit 1; }
done

native=src/rbegir/_native
kernels=("$native"/scan_{query,search,work,worker,portable,neon}.cpp "$native"/float_{portable,neon}.cpp
    tests/native/kernels.cpp)
mkdir -p build/arm
object() { echo "build/arm/$1-$(basename "$2" .cpp).o"; }  # COMPILER SOURCE
compile() {  # COMPILER SOURCE [options …]: only what changed
    local object=$(object "$1" "$2")
    [[ $object -nt $2 && -z $(find "$native" -name '*.hpp' -newer "$object" -print -quit) ]] && return
    "$1" -std=c++20 -O3 -Wall -Wextra -Werror -Wno-psabi -fvisibility=hidden -ffp-contract=off -fno-math-errno \
        -I"$native" "${@:3}" -c "$2" -o "$object"
}
build() {  # COMPILER PROGRAM
    local objects=()
    for source in "${kernels[@]}"; do
        compile "$1" "$source"
        objects+=("$(object "$1" "$source")")
    done
    "$1" -static "${objects[@]}" -o "$2"
}

build aarch64-linux-gnu-g++ build/arm/kernels-arm
build g++ build/arm/kernels-here
here=$(build/arm/kernels-here)
echo "this machine: $here"
arm=$(qemu-aarch64 build/arm/kernels-arm)
echo "aarch64:      $arm"
[[ $arm == "$here" ]] || { echo "error: the results differ" >&2; exit 1; }

headers=(-isystem "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    -isystem "$("$python" -m nanobind --include_dir)")
compiled=0
for source in "$native"/*.cpp; do
    [[ " ${kernels[*]} " == *" $source "* ]] && continue
    compile aarch64-linux-gnu-g++ "$source" "${headers[@]}"
    compiled=$((compiled + 1))
done
echo "aarch64:      $compiled other files of the module compile"
