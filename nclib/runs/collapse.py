"""Whether training destroyed what the warm-up had learnt, or a division left next to nothing to train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FALLEN = 0.75  # of the last warm-up epoch's validation score; below it training undid the warm-up
CURVES = ("phase", "val_rsum", "starved", "idle")  # what :func:`collapse` reads


def starved_networks(taken: Sequence[int], n_pairs: int, batch_size: int) -> list[int]:
    """Return the networks that took one step in an epoch of data with at least two full batches.

    Parameters
    ----------
    taken : sequence of int
        Steps of each network. A step takes at most one batch, so the method kept less than a batch of pairs,
        or exactly one; no step at all is an ``idle`` network.
    n_pairs, batch_size : int

    Returns
    -------
    list of int
    """
    return [network for network, n in enumerate(taken) if n == 1] if n_pairs >= 2 * batch_size else []


def validation_fall(curves: Sequence[Mapping[str, Any]]) -> str:
    """Say that the last epoch's validation rSum is below :data:`FALLEN` of that of the last warm-up epoch."""
    scores = {row.get("phase"): row["val_rsum"] for row in curves if "val_rsum" in row}  # the last of each
    before, now = scores.get("warm-up"), scores.get("training")
    if before is None or now is None or now >= FALLEN * before:
        return ""
    return f"validation rSum fell from {before:.1f} after warm-up to {now:.1f} at the end"


def collapse(curves: Sequence[Mapping[str, Any]]) -> str:
    """Say how a run on pairs collapsed, in a few words; empty where it did not.

    A run collapsed when a network trained on one batch of pairs or none in an epoch after warm-up, or when
    the run is :func:`validation_fall`.

    Parameters
    ----------
    curves : sequence of mapping
        One row an epoch, with what there is of :data:`CURVES`.
    """
    trained = [row for row in curves if row.get("phase") == "training"]
    few = sum(bool(row.get("starved") or row.get("idle")) for row in trained)
    kept = f"trained on one batch of pairs or none in {few} of {len(trained)} epochs" if few else ""
    return "; ".join(filter(None, (kept, validation_fall(curves))))
