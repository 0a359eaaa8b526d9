"""How many hits the published selection may miss: the paper's appendix, for any l, queue length and size.

Local selection keeps the best q of each thread's keywords. If X_t of the true top N fall on thread t, it
loses max(0, X_t − q) of them, so that in total

    L = Σ_t max(0, X_t − q)

where N places are drawn at random from C = Σ_t I_t without repetition. The paper enumerates compositions of
N for q = 1 and stops at l = 2. Two observations make any l easy:

* X_t drawn without repetition are independent binomials Bin(I_t, p) under the condition Σ X_t = N, whatever
  p is; p = N / C makes the condition likely. Hence P(L = l) = P(Σ L_t = l, Σ X_t = N) / P(Σ X_t = N) with
  independent pairs (X_t, L_t).
* The joint distribution of a sum of independent pairs is the inverse Fourier transform of φ(u, v) = Π_t
  E[exp(iuX_t + ivL_t)]. φ is negligible outside a narrow band (u within a few deviations of Σ X_t of the
  regression line of X on L), so a few hundred frequencies in each direction suffice, be C 10³ or 10¹².

The expectation needs no transform: X_t alone is hypergeometric, and E[recall] = 1 − Σ_t E[max(0, X_t − q)]
/ N. For q = 1 and equal threads that is (T/N)(1 − C(C−I, N) / C(C, N)).

Rejected: the coefficient of a polynomial power in 2 variables (cost grows with N·l), and
inclusion–exclusion (its alternating terms cancel beyond double precision).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rbegir.errors import InputError, whole_number

COMPLETE = 1e-12  # P(L ≤ l) is listed until it is within this of 1
FAR = 12.0  # deviations, of a Gaussian, beyond which nothing is left in double precision
SLACK = 40  # counts added to that, for distributions closer to a Poisson one


@dataclass(frozen=True)
class MissCertificate:
    """The distribution of the number of misses of a paper-mode search, if the best keywords lie at random."""

    candidates: int
    top: int
    per_thread: int
    queue: int
    expected_recall: float
    p_miss_at_most: tuple[float, ...]  # P(L ≤ 0), P(L ≤ 1), …; what is not listed is 1

    def at_most(self, misses: int) -> float:
        """P(L ≤ misses)."""
        if misses < 0:
            return 0.0
        return self.p_miss_at_most[misses] if misses < len(self.p_miss_at_most) else 1.0


def certificate(
    candidates: int, top: int, per_thread: int, queue: int = 1, *, most: int | None = None
) -> MissCertificate:
    """The certificate of C candidates in threads of I, the last one smaller if I does not divide C.

    `most` is the largest l of the list; by default it ends where the probability is 1 to twelve digits.
    """
    given = {"candidates": candidates, "top": top, "per_thread": per_thread, "queue": queue}
    for name, value in given.items():
        whole_number(name, value)
    if top > candidates:
        raise InputError(f"top must be at most the number of candidates {candidates}, got {top}")
    sizes = {per_thread: candidates // per_thread}
    if candidates % per_thread:
        sizes[candidates % per_thread] = 1
    return certificate_of_threads(sizes, top, per_thread, queue, most=most)


def certificate_of_threads(
    sizes: Mapping[int, int], top: int, per_thread: int, queue: int, *, most: int | None = None
) -> MissCertificate:
    """The certificate of threads given as {candidates of a thread: number of such threads}.

    Sums run over ascending sizes, so the last digits do not depend on the order in which they were counted.
    """
    pairs = [(int(size), int(count)) for size, count in sorted(sizes.items()) if size > 0 and count > 0]
    return _certificate(tuple(pairs), top, per_thread, queue, most)


# the transform takes tens of milliseconds, and searches of one index repeat the arguments
@lru_cache(maxsize=64)
def _certificate(
    pairs: tuple[tuple[int, int], ...], top: int, per_thread: int, queue: int, most: int | None
) -> MissCertificate:
    threads = dict(pairs)
    candidates = sum(size * count for size, count in threads.items())
    if top == 0:
        return MissCertificate(candidates, 0, per_thread, queue, 1.0, (1.0,))
    law, first = _law_of_misses(threads, candidates, top, queue)
    at_most = np.concatenate([np.zeros(first), np.minimum(np.cumsum(law), 1.0)])
    enough = int(np.searchsorted(at_most, 1 - COMPLETE))
    at_most = at_most[: enough + 1]
    at_most[enough:] = 1.0  # the rest is below the precision of the sum
    if most is not None:
        at_most = np.concatenate([at_most, np.ones(max(0, most + 1 - len(at_most)))])[: most + 1]
    recall = _expected_recall(threads, candidates, top, queue)
    return MissCertificate(candidates, top, per_thread, queue, recall, tuple(at_most.tolist()))


def _expected_recall(threads: Mapping[int, int], candidates: int, top: int, queue: int) -> float:
    missed = 0.0
    for size, count in threads.items():
        # Hypergeometric weights from the ratios of neighbours, normalised in the end: no large factorials.
        low, high = max(0, top + size - candidates), min(size, top)
        j = np.arange(low, high, dtype=np.float64)
        ratios = np.log((top - j) * (size - j)) - np.log((j + 1) * (candidates - top - size + j + 1))
        logs = np.concatenate([[0.0], np.cumsum(ratios)])  # [high − low + 1]
        weights = np.exp(logs - logs.max())
        lost = np.maximum(0.0, np.arange(low, high + 1, dtype=np.float64) - queue)
        missed += count * float(weights @ lost / weights.sum())
    return 1.0 - missed / top


def _binomial(size: int, p: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The values of Bin(size, p) that matter, and their probabilities."""
    mean, deviation = size * p, math.sqrt(size * p * (1 - p))
    low = max(0, math.floor(mean - FAR * deviation - SLACK))
    high = min(size, math.ceil(mean + FAR * deviation + SLACK))
    j = np.arange(low, high + 1, dtype=np.float64)
    ratios = np.log((size - j[:-1]) / (j[:-1] + 1)) + math.log(p) - math.log1p(-p)
    if low == 0:
        return j, np.exp(size * math.log1p(-p) + np.concatenate([[0.0], np.cumsum(ratios)]))
    logs = np.concatenate([[0.0], np.cumsum(ratios)])
    weights = np.exp(logs - logs.max())
    return j, weights / weights.sum()


def _law_of_misses(
    threads: Mapping[int, int], candidates: int, top: int, queue: int
) -> tuple[npt.NDArray[np.float64], int]:
    """P(L = first), P(L = first + 1), … while it is not negligible, and `first`."""
    if top == candidates:  # every keyword is relevant: nothing is random
        return np.ones(1), sum(count * max(0, size - queue) for size, count in threads.items())
    p = top / candidates
    pairs = []  # (number of threads, X, L, probability)
    mean_missed = var_found = var_missed = covariance = 0.0
    for size, count in threads.items():
        found, weight = _binomial(size, p)
        missed = np.maximum(0.0, found - queue)
        centre_found, centre_missed = float(weight @ found), float(weight @ missed)
        mean_missed += count * centre_missed
        var_found += count * float(weight @ (found - centre_found) ** 2)
        var_missed += count * float(weight @ (missed - centre_missed) ** 2)
        covariance += count * float(weight @ ((found - centre_found) * (missed - centre_missed)))
        pairs.append((count, found, missed, weight))
    slope = covariance / var_found
    deviation = math.sqrt(max(0.0, var_missed - covariance * slope))  # of L given Σ X

    # Sums over grids of frequencies are exact but for what lies a period away; periods exceed both laws.
    half = math.ceil(FAR * deviation) + SLACK
    first = max(0, math.floor(mean_missed) - half)
    period = 2 * half + 2
    reach = period // 2
    if deviation >= FAR:
        reach = min(reach, math.ceil(period * 10 / (2 * math.pi * deviation)))
    v = 2 * math.pi / period * np.arange(reach + 1)  # [V]; negative frequencies are the conjugates
    found_period = 2 * (math.ceil(FAR * math.sqrt(var_found)) + SLACK)
    band = min(found_period // 2, math.ceil(found_period * 40 / (2 * math.pi * math.sqrt(var_found))))
    if 2 * band >= found_period:
        around = np.arange(found_period) - found_period // 2
    else:
        around = np.arange(-band, band + 1)
    step = 2 * math.pi / found_period * around  # [U] added to the regression line u = −slope·v

    u = step[:, None] - slope * v  # [U, V]
    log_phi = np.zeros(u.shape, dtype=np.complex128)
    for count, found, missed, weight in pairs:
        # φ_t − 1 without cancellation: when threads are many, X = 0 has nearly all the weight, and phase 0.
        rest = found > 0
        less = -math.expm1(math.log(weight[0])) if not rest[0] else 1.0
        phases = np.exp(1j * step[:, None] * found[rest])  # [U, J]
        # exp(i(u·X + v·L)) = exp(i·step·X) · exp(i·v·(L − slope·X)): a product of two thin matrices
        off_line = (missed[rest] - slope * found[rest])[:, None]
        along = weight[rest][:, None] * np.exp(1j * off_line * v)  # [J, V]
        z = phases @ along - less  # [U, V]
        squares = z.real * (2 + z.real) + z.imag**2  # |1 + z|² − 1
        size_log = np.where(
            squares > -0.5,
            0.5 * np.log1p(np.maximum(squares, -0.5)),
            np.log(np.maximum(np.abs(1 + z), 1e-300)),
        )
        log_phi += count * (size_log + 1j * np.angle(1 + z))
    transform = np.exp(log_phi - 1j * u * top).sum(axis=0)  # [V] of P(L = l, Σ X = N) over l

    l = first + np.arange(period)  # noqa: E741  the paper's letter
    factor = np.full(len(v), 2.0)
    factor[0] = 1.0
    if 2 * reach == period:
        factor[-1] = 1.0
    phase = np.outer(l, v)
    law = np.cos(phase) @ (factor * transform.real) + np.sin(phase) @ (factor * transform.imag)
    return np.maximum(law / (period * transform[0].real), 0.0), first
