"""Losses of a batch, as functions of its similarity matrix.

Every loss takes ``S``, (B, B): images in rows, captions in columns, the given pairs on the diagonal. It
returns one value per pair, (B,); the caller takes the mean or the sum, as its paper does. Both retrieval
directions are added, never averaged, unless a formula says otherwise. Half precision scores are raised to
float32 first, and nothing here waits for the device.

Symbols: ``tau`` temperature, ``margin`` alpha, ``plan`` the transport plan of the batch (rows images),
``p_v2t`` the softmax of ``S / tau`` over the captions of an image, ``p_t2v`` over the images of a caption.

Two families have one call signature each, so that a method can take a name as option:

============ ==================================== ========================================
family       call                                 names
============ ==================================== ========================================
WARMUP       ``loss(S, tau=..., margin=...)``     infonce_rce, infonce, rce, triplet, ...
REMATCH      ``loss(S, plan, tau, floor=1e-10)``  sym_kl, kl, infonce
============ ==================================== ========================================
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nclib.losses.checks import Family
from nclib.losses.ranking import hinges, soft_margin_triplet, soft_margins, triplet
from nclib.losses.softmax import (
    COMPLEMENTARY,
    complementary,
    generalised_cross_entropy,
    info_nce,
    infonce_rce,
    log_probabilities,
    rematch_infonce,
    rematch_kl,
    rematch_sym_kl,
    reverse_cross_entropy,
    rince,
)

__all__ = [
    "COMPLEMENTARY",
    "REMATCH",
    "WARMUP",
    "complementary",
    "generalised_cross_entropy",
    "hinges",
    "info_nce",
    "infonce_rce",
    "log_probabilities",
    "rematch_infonce",
    "rematch_kl",
    "rematch_sym_kl",
    "reverse_cross_entropy",
    "rince",
    "soft_margin_triplet",
    "soft_margins",
    "triplet",
]


def _by_temperature(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda S, *, tau=0.05, margin=0.2: loss(S, tau)


def _by_margin(negatives: str) -> Callable[..., Tensor]:
    return lambda S, *, tau=0.05, margin=0.2: triplet(S, margin, negatives)


WARMUP = Family(
    "warm-up loss",
    {
        "infonce_rce": _by_temperature(infonce_rce),
        "infonce": _by_temperature(info_nce),
        "rce": _by_temperature(reverse_cross_entropy),
        "triplet": _by_margin("hardest"),
        "triplet_mean": _by_margin("mean"),
        "triplet_sum": _by_margin("sum"),
        "gce": _by_temperature(generalised_cross_entropy),
    },
)
"""Losses on all pairs as given; ``WARMUP[name](S, tau=0.05, margin=0.2)``. Each uses what it needs."""

REMATCH = Family("rematch loss", {"sym_kl": rematch_sym_kl, "kl": rematch_kl, "infonce": rematch_infonce})
"""Losses of the mismatched pairs against a transport plan; ``REMATCH[name](S, plan, tau, floor=1e-10)``."""
