"""Checks of arguments that many functions share: one rule and one wording for each."""

import numpy as np

from rbegir.errors import InputError


def whole_number(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return the value as an int; refuse non-integers (such as True and 2.0) and values out of range."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not is_whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {span}, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def describe(value: object) -> str:
    """Describe a value for an error message: dtype and shape of an array, else the type."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
