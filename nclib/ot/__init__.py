"""Optimal transport: balanced or partial, masked, batched, on any device.

Every solver takes a cost of shape (..., n, m) and returns a :class:`Transport`, which holds the plan, its
errors and its dual potentials, and which :meth:`Transport.certify` checks from scratch.
"""

from __future__ import annotations

from nclib.ot.certificate import Certificate
from nclib.ot.entropic import label_transport, partial_sinkhorn, sinkhorn
from nclib.ot.exact import exact, partial_exact
from nclib.ot.problem import Potentials, Problem, max_flow
from nclib.ot.small import scaling_plan
from nclib.ot.transport import Transport

__all__ = [
    "Certificate",
    "Potentials",
    "Problem",
    "Transport",
    "exact",
    "label_transport",
    "max_flow",
    "partial_exact",
    "partial_sinkhorn",
    "scaling_plan",
    "sinkhorn",
]
