"""Everything rbegir raises on purpose.

RbegirError                     one sentence: what was expected, what came; `.hint` says the way out
├── InputError                  an argument or a row of input is wrong (also a ValueError)
│   ├── TextError               a text with nothing to encode
│   └── FilterError             a `where` expression that cannot be understood
├── FileError                   a file is missing, unreadable, of another kind, or cannot be written
│   ├── CorruptError            bytes on disk are not the ones that were written
│   └── VersionError            written by a version of rbegir that this one cannot read
├── MismatchError               parts that do not belong together: model and index, codes and index
├── LockedError                 another writer holds the index
├── DeviceError                 a device that was asked for is not there, or failed
├── ServiceError                a search service cannot be reached, or answered what is no answer
│   ├── AccessError             it wants a token, or another one
│   └── BusyError               it was overloaded or not ready, and stayed so
└── MissingExtraError           an optional dependency is not installed

The command line prints `error: …` and `hint: …` for these and nothing else; a traceback is a bug.
"""

from __future__ import annotations


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


class VersionError(FileError):
    """A file was written by a version of rbegir that this one cannot read."""


class MismatchError(RbegirError):
    """Parts that do not belong together, such as an index and codes of another dimension."""


class LockedError(RbegirError):
    """Another process is writing to the index."""


class DeviceError(RbegirError):
    """A device that was asked for is not there, or failed."""


class ServiceError(RbegirError):
    """A search service cannot be reached, or answered what is no answer."""


class AccessError(ServiceError):
    """A search service wants a token, or another one."""


class BusyError(ServiceError):
    """A search service was overloaded or not ready, and stayed so through all retries."""


class MissingExtraError(RbegirError):
    """An optional dependency is not installed."""
