"""Trained networks that chapters ask, and batches of their wrong pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ncbook.demo import opened, stored_runs
from nclib.runs import Record, TrainedModel

RATE = 0.4  # mismatch rate of the stored networks
BATCH, CHAIN = 12, 8  # wrong pairs of a batch, and those of them that hold each other's partners


def model_of(record: Record) -> TrainedModel:
    """Return the networks of a finished run on pairs, made here or stored, to score with."""
    run = opened(record)
    return TrainedModel(run.trainer.networks, run.dataset.vocabulary)


def wrong_batch(own: np.ndarray, given: np.ndarray, seed: int = 0) -> tuple[list[int], list[int]]:
    """Choose wrong pairs, the first of which hold each other's partners: more than a batch has by chance.

    Parameters
    ----------
    own, given : ndarray, int, (N,)
        Picture that each caption was written for, and the picture that the noise pairs it with.
    seed : int
        Of the choice.

    Returns
    -------
    rows : list of int, (B,)
        Pairs; each of the first holds a caption of the image before it.
    partner : list of int, (B,)
        Place in ``rows`` of the caption that truly belongs to the image of a row; -1 where none does.
    """
    wrong = np.random.default_rng(seed).permutation(np.flatnonzero(own != given))
    rows = [int(wrong[0])]
    while len(rows) < CHAIN:
        partners = wrong[own[wrong] == given[rows[-1]]]
        if not len(partners) or partners[0] in rows:
            break
        rows.append(int(partners[0]))
    for q in wrong:
        if len(rows) < BATCH and given[q] not in given[rows] and own[q] not in given[rows]:
            rows.append(int(q))
    return rows, [next((j for j, q in enumerate(rows) if own[q] == given[p]), -1) for p in rows]


def stored(method: str, rate: float = RATE) -> Record:
    """Return the stored run of a network, ``plain``, ``infonce``, ``l2rm`` or ``rcl``, at a mismatch rate.

    Raises
    ------
    ValueError
        Where there is none.
    """
    for record in stored_runs():
        s = record.settings
        loss = s["method_options"].get("loss")
        name = "infonce" if s["method"] == "plain" and loss == "infonce" else s["method"]
        if (Path(record.folder).parent.name, name, s.get("mrate")) == ("noisy_correspondence", method, rate):
            return record
    raise ValueError(f"no stored network of {method} at rate {rate:g}: make demo makes it")
