# The native module. Callers have checked their input: what is wrong here is a ValueError or TypeError.
import numpy as np
import numpy.typing as npt

# scan*.cpp
def scan_isas() -> list[str]: ...
def scan_search(
    partitions: list[tuple[npt.NDArray[np.uint8], int, npt.NDArray[np.uint64] | None]],
    values: npt.NDArray[np.int16],
    k: int,
    *,
    planes: int,
    threads: int,
    isa: str,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def scan_rescore(
    partitions: list[tuple[npt.NDArray[np.uint8], int, npt.NDArray[np.uint64] | None]],
    values: npt.NDArray[np.int16],
    positions: npt.NDArray[np.int64],
    k: int,
    *,
    planes: int,
    threads: int,
    isa: str,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def read_sum(bytes: npt.NDArray[np.uint8], threads: int) -> int: ...
