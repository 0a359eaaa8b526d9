"""Labels of near points stand apart, in order, around what they label."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rbegir.lab.reproduce.report import LABEL_GAP, spread


@given(st.lists(st.floats(0, 1), max_size=20))
def test_labels_do_not_overlap(values: list[float]) -> None:
    values.sort()
    heights = spread(values)
    assert len(heights) == len(values)
    gaps = [b - a for a, b in pairwise(heights)]
    assert all(gap > LABEL_GAP * 0.999 for gap in gaps)
    assert abs(sum(heights) - sum(values)) < 1e-9 * max(1, len(values))


def test_labels_that_have_room_stay_where_they_are() -> None:
    assert spread([0.1, 0.5, 0.9]) == [0.1, 0.5, 0.9]
