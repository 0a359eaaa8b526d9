"""Everything rbegir raises on purpose, and the checks of arguments that all packages share.

RbegirError                     one sentence: what was expected, what came; `.hint` says the way out
├── InputError                  an argument or a row of input is wrong (also a ValueError)
│   ├── TextError               a text with nothing to encode
│   └── FilterError             a `where` expression that cannot be understood
├── FileError                   a file is missing, unreadable, of another kind, or cannot be written
│   ├── CorruptError            bytes on disk are not the ones that were written
│   ├── FullError               there is no room on the disk
│   └── VersionError            written by a version of rbegir that this one cannot read
├── MismatchError               parts that do not belong together: model and index, codes and index
├── LockedError                 another writer holds the index
├── DeviceError                 a device that was asked for is not there, or failed
├── BusyError                   a service or cluster has too much waiting; asking again later helps
├── ServiceError                a search service cannot be reached, or answered what is no answer
│   └── AccessError             it wants a token, or another one
├── ClusterError                a cluster cannot be reached, or part of it cannot answer
│   └── DeadlineError           there was no complete answer in the time that was given
└── MissingExtraError           an optional dependency is not installed

The command line prints `error: …` and `hint: …` for these and nothing else; a traceback is a bug.

TrainingWarning, a UserWarning, is about a model that was trained but is worse than expected.
"""

import contextlib
from collections.abc import Iterator
from numbers import Integral


class RbegirError(Exception):
    """Base of all errors of this package. `hint` is one sentence about the way out, or empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class InputError(RbegirError, ValueError):
    """An argument or a row of input is wrong."""


class TextError(InputError):
    """A text holds no letter and no digit, so there is nothing to encode."""


class FilterError(InputError):
    """A `where` expression cannot be understood, or names a column that is not there."""


class FileError(RbegirError):
    """A file is missing, unreadable, of another kind, or cannot be written."""


class CorruptError(FileError):
    """Bytes on disk are not the ones that were written."""


class FullError(FileError):
    """There is no room on the disk; what was acknowledged before is still there."""


class VersionError(FileError):
    """A file was written by a version of rbegir that this one cannot read."""


class MismatchError(RbegirError):
    """Parts that do not belong together, such as an index and codes of another dimension."""


class LockedError(RbegirError):
    """Another process is writing to the index."""


class DeviceError(RbegirError):
    """A device that was asked for is not there, or failed."""


class BusyError(RbegirError):
    """A service or cluster has more waiting than may wait, or is not ready; asking again later helps."""


class ServiceError(RbegirError):
    """A search service cannot be reached, or answered what is no answer."""


class AccessError(ServiceError):
    """A search service wants a token, or another one."""


class ClusterError(RbegirError):
    """A cluster cannot be reached, or part of it cannot answer."""


class DeadlineError(ClusterError):
    """There was no complete answer in the time that was given."""


class MissingExtraError(RbegirError):
    """An optional dependency is not installed."""


class TrainingWarning(UserWarning):
    """A trained model is worse than what needs no training."""


@contextlib.contextmanager
def needing(message: str, hint: str) -> Iterator[None]:
    """Turn the ImportError of an optional dependency into a MissingExtraError; {} stands for its name."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(message.replace("{}", str(error.name)), hint=hint) from error


def whole_number(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return the value as an int; refuse non-integers (such as True and 2.0) and values out of range."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {span}, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def describe(value: object) -> str:
    """Describe a value for an error message: dtype and shape of an array, else the type."""
    is_array = hasattr(value, "dtype") and getattr(value, "ndim", 0) > 0
    return f"{value.dtype} {list(value.shape)}" if is_array else type(value).__name__  # type: ignore[attr-defined]
