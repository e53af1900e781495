"""What the command prints of an audit, and the pictures that its page shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from nclib.audit.result import Audit
from nclib.common.files import replacing
from nclib.data.readers import Listing, UnreadableError

SUSPECTS = 200  # pairs on the page
ASKED = 60
PRINTED = 5  # pairs, and reasons why pairs could not be judged, in the terminal
WIDTH = 60  # characters of a caption in the terminal
WEAK = 0.8  # area under the ROC curve, below which probabilities need a warning
SIDE = 512  # pixels of a picture taken out of a tar or a data set


def summary(audit: Audit) -> str:
    """Return what an audit found in a few lines: the share of wrong pairs, and the first suspects."""
    pairs, share = audit.pairs, audit.share
    lines = [f"{len(pairs):,} pairs of {len(pairs.images):,} pictures"]
    if pairs.problems:
        reasons = Counter(pairs.problems.values()).most_common(PRINTED)
        said = "; ".join(f"{_plain(reason)} ({n:,})" for reason, n in reasons)
        lines.append(f"{len(pairs.problems):,} could not be judged: {said}")
    if np.isfinite(share.value):
        interval = f"{share.low:.1%} to {share.high:.1%}"
        lines.append(f"about {share.value:.1%} are wrong ({interval}) by the score {audit.score}")
    lines += filter(None, (audit.assumption, weakness(audit)))
    # Who labelled a pair knows it: what to look at next are the others.
    to_see = audit.table["p_wrong"].notna() & ~audit.table["id"].isin(list(audit.labels))
    first = audit.table[to_see].sort_values("rank").head(PRINTED)
    if len(first):
        lines += ["", f"the most suspicious pairs{' without a label' if audit.labels else ''}:"]
    for row in first.itertuples():
        lines.append(f"  P(wrong) {row.p_wrong:.2f}  {_plain(row.id)}  {_plain(row.caption)}")
    return "\n".join(lines)


def weakness(audit: Audit) -> str:
    """Return a warning where the score hardly tells given from exchanged pairs; empty where it does."""
    area = audit.settings["auroc_on_exchanged"].get(audit.score)
    if area is None or area >= WEAK or not np.isfinite(audit.share.value):
        return ""
    return (
        "The score hardly tells the given pairs from captions exchanged at random: the area under its ROC "
        f"curve is {area:.2f}, where 1 is perfect and 0.5 is chance. Either most pairs are wrong, or the "
        "embeddings do not fit these data: check some pairs by eye, and try a pretrained model (--model)."
    )


def _plain(text: object) -> str:
    """Return the beginning of a strange text without what a terminal would obey."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text))
    return shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 3]}..."


def extract(audit: Audit, listing: Listing, folder: Path) -> None:
    """Write the pictures that the page shows as files, where they lie in a tar or a data set.

    Their names in ``audit.pairs.pictures`` become the paths of these files, which are numbered: nothing that
    strangers wrote becomes a file name.
    """
    names, opener = audit.pairs.pictures, listing.open
    if names is None or opener is None:
        return
    table = audit.table
    row_of = {name: row for row, name in enumerate(table["id"])}
    rows = [*np.argsort(table["rank"].to_numpy())[:SUSPECTS].tolist()]
    rows += [row_of[name] for name in audit.ask(ASKED)["id"]]
    rows += [row_of[name] for name in table["partner_id"].iloc[rows] if name in row_of]
    for picture in dict.fromkeys(audit.pairs.image_of[rows].tolist()):
        if Path(names[picture]).is_file() or "://" in names[picture]:
            continue
        try:
            found = opener(picture)
        except UnreadableError:
            continue
        found.thumbnail((SIDE, SIDE))
        path = folder / f"{picture}.jpg"
        with replacing(path) as file:
            found.save(file, "JPEG", quality=85)
        names[picture] = str(path)
