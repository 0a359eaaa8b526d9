# The native module, as Python sees it. Callers have checked their input: errors here are ValueError or TypeError.
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
def read_sum(bytes: npt.NDArray[np.uint8], threads: int) -> int: ...
