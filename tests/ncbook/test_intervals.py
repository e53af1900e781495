"""Drawings of intervals: where they stand, which kind they are, and what a reader of the screen hears."""

import math
import re

import pytest
from ncbook.compare import Difference
from ncbook.intervals import EDGE, WIDTH, interval_plot

ABOVE = (0.0, math.inf)


def numbers(pattern, svg):
    return [tuple(map(float, found.groups())) for found in re.finditer(pattern, svg)]


def test_means_stand_within_their_intervals_and_zero_where_the_region_begins():
    found = [(Difference((4.0, 5.0, 6.0)), ABOVE), (Difference((-4.0, -5.0, -6.0)), ABOVE)]
    svg = interval_plot(found)
    ((zero,),) = numbers(r'nc-zero" d="M([\d.]+) ', svg)
    bars = numbers(r"M([\d.]+) [\d.]+H([\d.]+)", svg)
    means = [x for (x,) in numbers(r'cx="([\d.]+)"', svg)]
    scale = (means[0] - means[1]) / 10
    for (d, _), (start, end), mean in zip(found, bars, means, strict=True):
        low, high = d.interval
        assert mean == pytest.approx(zero + scale * d.mean, abs=0.2)
        assert (start, end) == pytest.approx((zero + scale * low, zero + scale * high), abs=0.2)
        assert EDGE <= start < mean < end <= WIDTH - EDGE
    shaded = numbers(r'<rect class="nc-region" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    assert {round(x, 1) for x, _ in shaded} == {zero}
    assert all(x + width == pytest.approx(WIDTH - EDGE, abs=0.2) for x, width in shaded)
    assert 'aria-label="2 intervals: 1 in the claimed region, 1 outside it"' in svg
