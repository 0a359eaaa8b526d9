"""Which failures are tried again, and after how long.

A call may be repeated when doing it twice leaves what doing it once leaves: search, get, info, upsert and
delete. `add` (refuses ids that are there, so it would trip over itself) and `compact` (long) are not.

| what happened                                   | repeatable call | add, compact |
|-------------------------------------------------|-----------------|--------------|
| no connection was made: nothing was sent        | again           | again        |
| 503: the service was busy                       | again           | raised       |
| the connection broke before the whole answer    | again           | raised       |
| the time of the call was up                     | raised          | raised       |
| any other answer                                | raised          | raised       |

Time-outs are not repeated: the service is slow already. The wait before attempt i is drawn from
0 … BACKOFF · 2^i seconds, so that clients refused together do not come back together, and is never shorter
than the service's Retry-After. A wait beyond MOST is not made; the error is raised at once instead, so that a
call takes at most retries · MOST seconds longer than its attempts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

BACKOFF = 0.1
MOST = 10.0
BUSY = 503


def retry_after(header: str | None) -> float:
    """Seconds of a Retry-After header, given as a number or as a date; 0 for none and for nonsense."""
    if not header:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        return 0.0
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


@dataclass
class Attempts:
    """The attempts of one call. Each method says how long to wait before the next, or None: no next."""

    repeatable: bool
    retries: int
    draw: Callable[[float, float], float] = random.uniform
    made: int = 0

    def after_no_connection(self) -> float | None:
        return self._wait(0.0)

    def after_break(self) -> float | None:
        return self._wait(0.0) if self.repeatable else None

    def after_answer(self, status: int, header: str | None) -> float | None:
        return self._wait(retry_after(header)) if status == BUSY and self.repeatable else None

    def _wait(self, least: float) -> float | None:
        if self.made >= self.retries or least > MOST:
            return None
        wait = max(least, self.draw(0.0, min(MOST, BACKOFF * 2**self.made)))
        self.made += 1
        return wait
