#!/usr/bin/env bash
# Builds the kernels for aarch64 and for this machine, runs the former under qemu, and compares the results of both.
# Usage: tests/native/arm.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in aarch64-linux-gnu-g++ qemu-aarch64 g++; do
    command -v "$tool" >/dev/null || {
        echo "skipped: $tool is missing; install it with: apt-get install g++ g++-aarch64-linux-gnu qemu-user"
        exit 0
    }
done

native=src/rbegir/_native
sources=("$native"/scan_{query,search,work,worker,portable,neon}.cpp "$native"/float_{portable,neon}.cpp
    tests/native/kernels.cpp)
mkdir -p build/arm
build() {  # COMPILER PROGRAM: only what changed
    local compiler=$1 program=$2 objects=()
    for source in "${sources[@]}"; do
        local object=build/arm/$compiler-$(basename "$source" .cpp).o
        objects+=("$object")
        [[ $object -nt $source && -z $(find "$native" -name '*.hpp' -newer "$object" -print -quit) ]] && continue
        "$compiler" -std=c++20 -O3 -Wall -Wextra -Wno-psabi -ffp-contract=off -fno-math-errno -I"$native" -c "$source" -o "$object"
    done
    "$compiler" -static "${objects[@]}" -o "$program"
}

build aarch64-linux-gnu-g++ build/arm/kernels-arm
build g++ build/arm/kernels-here
here=$(build/arm/kernels-here)
echo "this machine: $here"
arm=$(qemu-aarch64 build/arm/kernels-arm)
echo "aarch64:      $arm"
[[ $arm == "$here" ]] || { echo "the results differ" >&2; exit 1; }
