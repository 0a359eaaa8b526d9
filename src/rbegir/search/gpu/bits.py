"""Bit operations of the kernels: one instruction each on a card, plain arithmetic in Triton's interpreter.

The compiler does not always find the three-input logic instruction that these are, and the popcount scan
has little to spare, so the compiled versions name it (`lop3` with the truth table of the operation).
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from rbegir.search.gpu.runtime import INTERPRETED


@triton.jit
def rotate_right(x):
    return (x >> 1) | (x << 31)


@triton.jit
def rotate_left(x):
    return (x << 1) | (x >> 31)


if INTERPRETED:

    @triton.jit
    def popcount(x):
        x = x - ((x >> 1) & 0x55555555)
        x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
        x = (x + (x >> 4)) & 0x0F0F0F0F
        return ((x * 0x01010101) >> 24).to(tl.int32)

    @triton.jit
    def parity(x, y, z):
        return x ^ y ^ z

    @triton.jit
    def majority(x, y, z):
        return (x & y) | (z & (x | y))

    @triton.jit
    def odd_even(x, y):
        return (x & 0xAAAAAAAA) | (y & 0x55555555)

else:

    @triton.jit
    def popcount(x):
        return libdevice.popc(x.to(tl.int32, bitcast=True))

    @triton.jit
    def parity(x, y, z):
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0x96;", "=r,r,r,r", [x, y, z], dtype=tl.uint32, is_pure=True, pack=1
        )

    @triton.jit
    def majority(x, y, z):
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0xE8;", "=r,r,r,r", [x, y, z], dtype=tl.uint32, is_pure=True, pack=1
        )

    @triton.jit
    def odd_even(x, y):  # the odd bits of x, the even bits of y
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, 0xAAAAAAAA, 0xE4;", "=r,r,r", [x, y], dtype=tl.uint32, is_pure=True, pack=1
        )
