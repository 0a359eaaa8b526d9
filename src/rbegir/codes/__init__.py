"""Binary codes.

planes    `Codes` and the bit order
layout    codes packed for the scan
score     the exact score of a query and a keyword: the specification of every backend
"""

from rbegir.codes.planes import Codes

__all__ = ["Codes"]
