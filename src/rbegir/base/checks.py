"""Checks of arguments that many functions share: one rule and one wording for each."""

import numpy as np

from rbegir.errors import InputError


def whole_number(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """The value as an int; refuse what is no integer (True and 2.0 are not) or out of range."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not is_whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {span}, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def describe(value: object) -> str:
    """What came, for an error message: dtype and shape of an array, the type of anything else."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
