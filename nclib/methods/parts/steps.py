"""The steps of an epoch that trains on batches of two subsets side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from torch import Tensor

from nclib.methods.base import Batch, BatchIterable, Loop, Steps


def endless(loop: Loop, subset: Tensor, purpose: str, *, drop_last: bool = False) -> Iterator[Batch]:
    """Yield shuffled batches of the pairs at ``subset`` without end; every pass is shuffled again.

    Parameters
    ----------
    loop : Loop
    subset : Tensor, int64, (n,)
        Enough pairs for one batch.
    purpose : str
        Names the draws, together with the number of the pass.
    drop_last : bool
        Leave out a last batch that is not full.
    """
    for turn in itertools.count():
        yield from loop.batches(subset, purpose=f"{purpose} {turn}", drop_last=drop_last)


def beside(clean: BatchIterable, noisy: Iterable[Batch] | None) -> Steps:
    """Return the steps (clean batch, noisy batch or None), one per clean batch.

    Parameters
    ----------
    clean : batches that know their number
    noisy : iterable of Batch, or None
        At least as many batches as ``clean``; None: no noisy pairs.

    Returns
    -------
    Steps
    """
    return Steps(zip(clean, itertools.repeat(None) if noisy is None else noisy, strict=False), len(clean))
