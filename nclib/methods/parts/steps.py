"""The steps of an epoch that trains on batches of two subsets side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import Tensor

from nclib.methods.base import Batch, BatchIterable, Loop, Steps


def beside(
    clean: BatchIterable, loop: Loop, subset: Tensor | None, purpose: str = "", *, drop_last: bool = False
) -> Steps:
    """Return the steps (clean batch, noisy batch or None), one per clean batch.

    Parameters
    ----------
    clean : batches that know their number
    loop : Loop
    subset : Tensor, int64, (n,), or None
        Noisy pairs, enough for one batch, shuffled again for every pass; None: no noisy batches.
    purpose : str
        Names the draws of the noisy batches, together with the number of the pass.
    drop_last : bool
        Leave out a last noisy batch that is not full.
    """

    def noisy() -> Iterator[Batch]:
        for turn in itertools.count():
            yield from loop.batches(subset, purpose=f"{purpose} {turn}", drop_last=drop_last)

    return Steps(zip(clean, itertools.repeat(None) if subset is None else noisy(), strict=False), len(clean))
