"""CUDA C++ compiled at run time with nothing but what torch brings: NVRTC and the driver, by ctypes.

torch ships libnvrtc with every CUDA build, and the driver's libcuda is there wherever a card is. Rejected:
torch's own `torch.cuda._compile_kernel` (private, only since 2.9), cupy and cuda.core (one more dependency
each), shipping compiled binaries (one a card generation).
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from rbegir.errors import DeviceError

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CompileError(DeviceError):
    """A kernel could not be compiled or loaded for this card."""


@cache
def _nvrtc() -> ctypes.CDLL:
    major = (torch.version.cuda or "12").split(".")[0]
    name = f"libnvrtc.so.{major}"
    roots = {Path(torch.__file__).parents[1], Path(sysconfig.get_paths()["purelib"])}
    found = [str(p) for root in sorted(roots) for p in sorted((root / "nvidia").glob(f"*/lib/{name}"))]
    for candidate in [name, *found, f"/usr/local/cuda/lib64/{name}"]:
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise CompileError(f"{name} was not found", hint="install the CUDA build of torch, which brings it")


def available() -> bool:
    """Whether NVRTC is there."""
    try:
        _nvrtc()
    except CompileError:
        return False
    return True


def compile_cubin(source: str, architecture: str, defines: Sequence[str]) -> bytes:
    """Machine code for an architecture such as sm_90a; needs no card."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"scan.cu", 0, None, None):
        raise CompileError("NVRTC refused the kernel source")
    try:
        options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{d}" for d in defines)]
        array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), array)
        size = ctypes.c_size_t()
        if failed:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            first = next((line for line in log.value.decode().splitlines() if "error" in line), "no message")
            raise CompileError(f"the kernel does not compile for {architecture}: {first}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


class Kernel:
    """A function of a cubin, loaded on the current device of torch."""

    def __init__(self, cubin: bytes, name: str, shared: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        torch.cuda.current_stream()  # makes the primary context current
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(module), cubin))
        self._check(self._cuda.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
        self.shared = shared
        self._check(self._cuda.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, shared))

    def blocks_per_multiprocessor(self, threads: int) -> int:
        count = ctypes.c_int()
        self._check(
            self._cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(count), self._function, threads, ctypes.c_size_t(self.shared)
            )
        )
        return count.value

    def launch(self, grid: int, threads: int, argument: ctypes.Structure) -> None:
        """Run on torch's current stream with one struct as the only argument."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        status = self._cuda.cuLaunchKernel(
            self._function, grid, 1, 1, threads, 1, 1, self.shared, stream, parameters, None
        )
        if status:  # not a CompileError: there is no other kernel to fall back to
            raise DeviceError(f"the driver did not start a kernel: {self._text(status)}")

    def _check(self, status: int) -> None:
        if status:
            raise CompileError(f"the driver refused a kernel: {self._text(status)}")

    def _text(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorString(status, ctypes.byref(text))
        return (text.value or b"unknown error").decode()
