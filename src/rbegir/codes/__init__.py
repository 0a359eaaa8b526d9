"""Binary codes: how they are stored in memory, and what two of them score."""

from rbegir.codes.planes import Codes

__all__ = ["Codes"]
