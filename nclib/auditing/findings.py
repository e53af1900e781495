"""Sentences about what an audit found beside the share: scores that disagree, and what repeats."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nclib.auditing.copies import Copies
from nclib.auditing.pairs import Pairs
from nclib.auditing.settle import Settled
from nclib.auditing.share import Share
from nclib.auditing.wording import quoted
from nclib.common.row_writer import some


def disagreement(found: Settled) -> list[str]:
    """Return a warning where scores disagree about the share of wrong pairs, else nothing."""
    if found.contradicted is None:
        return []
    name, share = found.contradicted
    return [
        f"Two estimates of the share of wrong pairs contradict each other: {said(share)} by the score "
        f"{name}, {said(found.second)} by the standardised cosine. Share and probabilities are those of the "
        "standardised cosine, and the interval holds both. Mark the pairs whose label teaches most before "
        "you rely on a number."
    ]


def said(share: Share) -> str:
    """Return a share and its interval in words."""
    return f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})"


def what_repeats(repeats: pd.DataFrame, copies: Copies, pairs: Pairs) -> list[str]:
    """Return sentences about repeated captions and pictures, and about copies of pairs."""
    found = []
    for kind, one, many, others in (
        ("caption", "caption stands on", "captions stand on", "pictures"),
        ("picture", "picture has", "pictures have", "captions"),
    ):
        mine = repeats[repeats["kind"] == kind]
        if len(mine):
            first = mine.iloc[0]
            said = f"1 {one} {first['times']:,} {others}: {quoted(first['name'])}"
            if len(mine) > 1:
                said = f"{len(mine):,} {many} {copies.least} {others} or more each. The first: {said}"
            if first["wrong"] == first["wrong"]:  # else there are no probabilities
                said += f"; about {first['wrong']:.0%} of its pairs are wrong"
            found.append(f"{said}.")
    if stored := int((copies.count[pairs.usable] == 0).sum()):
        found.append(f"{stored:,} pairs repeat picture and caption of an earlier pair; copies count as one.")
    return found


#: Beginning of the sentences about labels.
MARKS = "Marks"


def about_marks(double: list[str], apart: list[str], doubted: list[str]) -> list[str]:
    """Return sentences that name labels which contradict each other, or the scores.

    Parameters
    ----------
    double : list of str
        Pairs that are both wrong and right by the labels.
    apart : list of str
        Pairs with another label than a pair with the same picture and caption.
    doubted : list of str
        Pairs whose label is more likely mistaken than not.
    """
    facts = (
        (double, "that call one pair both wrong and right, and do not count"),
        (apart, "that differ between pairs with the same picture and caption"),
        (doubted, "that are probably mistaken, as these pairs score"),
    )
    return [f"{MARKS} {what}: {some(map(quoted, names))}." for names, what in facts if names]


def marks_warning(before: Share, after: Share, unseen: float) -> list[str]:
    """Return a warning where labels say that a calibration did not hold, else nothing."""
    if unseen < 0.5 or not np.isfinite(before.value):
        return []
    return [
        f"{MARKS} contradict the scores: {said(after)} of the pairs are wrong by the marks, {said(before)} "
        "by the scores alone."
    ]
