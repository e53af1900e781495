"""Optimal transport: partial, masked, batched, on any device, with a result that can be questioned.

Knows nothing of images, captions or networks. Every solver takes a cost of shape (..., n, m) and returns a
:class:`Transport`.
"""

from __future__ import annotations

from nclib.ot.balanced import label_transport, sinkhorn
from nclib.ot.exact import exact, partial_exact
from nclib.ot.partial import partial_sinkhorn
from nclib.ot.small import scaling_plan
from nclib.ot.transport import Potentials, Problem, Transport

__all__ = [
    "Potentials",
    "Problem",
    "Transport",
    "exact",
    "label_transport",
    "partial_exact",
    "partial_sinkhorn",
    "scaling_plan",
    "sinkhorn",
]
