"""Report of an audit: one HTML file with charts, a threshold, and suspects to mark. It needs no network.

Also what the command prints.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from numpy.typing import NDArray

from nclib.auditing.belief import WRONG_FROM
from nclib.auditing.pairs import Pairs
from nclib.auditing.result import ASKED, Findings
from nclib.auditing.wording import beginning, kind_of, percent, verdict
from nclib.common.extras import MissingExtraError, needed_by
from nclib.common.files import digest, write_atomically
from nclib.readers import UnreadableError

HERE = Path(__file__).parent
SUSPECTS = 200  # of the most suspicious pairs on the page
FIRST = 12  # suspects in a notebook
FOLD = 200  # characters of a caption of another pair
SHORT = 300  # characters of an id, a file name or a reason
PICTURE_BYTES = 15_000
SIZES = ((256, 75), (256, 50), (192, 50), (128, 40), (64, 30))  # side in pixels, JPEG quality, tried in turn
LISTED = 2_000_000  # pairs up to which the page itself makes the list of kept ids
PRINTED = 5  # pairs and reasons in the terminal
SHOWN = 10  # groups, and runs, in the terminal


def write_report(audit: Findings, folder: str | Path, again: str = "") -> Path:
    """Write the report of an audit as one HTML file without references to other files or servers.

    Parameters
    ----------
    audit : Findings
    folder : path
        Made when missing. Files of :meth:`Findings.save` that lie in it are listed on the page.
    again : str
        Command that audits the pairs again with ``checked.csv``, for the page to show.

    Returns
    -------
    Path
        ``folder / "report.html"``.

    Raises
    ------
    OSError
        When the file cannot be written.

    Notes
    -----
    Captions, ids and file names are escaped, and a content security policy admits no script and no style
    but the two of the page, by their hashes. Small copies of the pictures are in the file, without their
    metadata.
    """
    path = Path(folder) / "report.html"
    style, script = ((HERE / f"report.{end}").read_text("utf8") for end in ("css", "js"))
    page = _template("report.html").render(
        style=style,
        script=script,
        policy=(
            f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ),
        again=again,
        **_contents(audit, path.parent),
    )
    # A lone surrogate, as in names of files that are not UTF-8, cannot be written; it becomes "?".
    write_atomically(path, page.encode("utf8", "replace"))
    return path


def notebook_view(audit: Findings) -> str:
    """Return what a notebook shows of an audit: the share, and the first suspects with their pictures."""
    pictures: dict[int, str] = {}
    cards = [_card(audit, row, pictures, {}) for row in audit.unlabelled.index[:FIRST]]
    page = _template("report.cell.html")
    return page.render(audit=audit, words=audit.pairs.words, cards=cards, pictures=pictures)


def _template(name: str) -> Template:
    pages = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    pages.policies["json.dumps_kwargs"] = {"allow_nan": False}
    pages.filters |= {"cut": _cut, "percent": percent, "count": "{:,}".format}
    pages.tests["known"] = lambda value: value == value  # NaN differs from itself
    return pages.get_template(name)


def _contents(audit: Findings, folder: Path) -> dict[str, Any]:
    """Return what the template shows, as plain values."""
    pairs, table, costs = audit.pairs, audit.table, audit.curves["threshold"]
    pictures: dict[int, str] = {}  # data URI by picture row, "" where there is none to show
    suspects = audit.unlabelled.index[:SUSPECTS].tolist()
    asked = [pairs.row_of[name] for name in audit.ask(ASKED)["id"]]
    t = costs["t"]
    alike, members = _alike(audit, [*suspects, *asked])
    short = table[["id", "caption", "image_duplicate_of", "caption_duplicate_of"]]
    short = short.assign(caption=[_cut(text, 80) for text in table["caption"]])
    problems = [(*short.iloc[row, :2], reason) for row, reason in sorted(pairs.problems.items())]
    contents = {
        "audit": audit,
        "words": pairs.words,
        **_figures(audit),
        "costs": {name: values.tolist() for name, values in costs.items()},
        "start": int(np.abs(t - WRONG_FROM).argmin()),
        "tenths": sorted({int(np.abs(t - goal).argmin()) for goal in np.arange(0.1, 0.95, 0.1)}),
        "suspects": [_card(audit, row, pictures, alike) for row in suspects],
        "asked": [_card(audit, row, pictures, alike) for row in asked],
        "copies": short[(short.iloc[:, 2:] != "").any(axis=1)],
        "problems": problems,
        "problem_counts": Counter(pairs.problems.values()).most_common(),
        "there": {path.name for path in folder.glob("*")},
    }
    cards = contents["suspects"] + contents["asked"]
    contents["reasons"] = Counter(one["kind"] for one in cards).most_common()
    names = json.dumps([pairs.ids, pairs.texts, pairs.pictures])
    contents["data"] = {
        # Of the pairs alone, so that marks survive a recalibration.
        "checksum": digest([names, np.asarray(pairs.image_of)])[:16],
        "pairs": int(pairs.usable.sum()),
        "threshold": contents["costs"],
        "rows": _steps(audit, t),
        "ids": {row: pairs.ids[row] for row in (*suspects, *asked)},
        "alike": members,
        "labels": list(audit.labels.items()),
        "edits": list(audit.edits.items()),
        "pictures": {row: uri for row, uri in pictures.items() if uri},
    }
    return contents


def _figures(audit: Findings) -> dict[str, str]:
    """Return the figures; without matplotlib, in their place, which extra brings it."""
    try:
        with needed_by("this figure"):
            from nclib.auditing.figures import histogram, reliability
    except MissingExtraError as error:
        return dict.fromkeys(("histogram", "reliability"), f"<p>{escape(str(error))}</p>")
    return {
        "histogram": histogram(audit.curves, f"score ({audit.score}), larger fits better"),
        "reliability": reliability(audit.curves["reliability"]),
    }


def _alike(audit: Findings, rows: list[int]) -> tuple[dict[int, tuple[int, int]], list[list[str]]]:
    """Return groups that one mark may decide: pairs of one repeated caption, or of one shifted run.

    By row of ``rows`` the number of its group and the pairs in it; then the ids of each group.
    """
    pairs, copies = audit.pairs, audit.belief.context.copies
    group = np.full(len(pairs), -1)
    for at, one in enumerate(audit.patterns):
        if one["kind"] == "shift":
            group[[pairs.row_of[name] for name in one["ids"]]] = len(group) + at
    group = np.where(copies.repeated_caption, copies.said, group)
    keys = np.unique(group[np.array(rows, np.int64)]).tolist()
    places = {key: np.flatnonzero((group == key) & pairs.usable) for key in keys if key >= 0}
    number = {key: k for k, key in enumerate(places)}
    of = {row: (number[k], len(places[k])) for row in rows if (k := int(group[row])) >= 0}
    members = [[pairs.ids[row] for row in found] for found in places.values()]
    return of, members


def _fitting(audit: Findings, row: int) -> list[str]:
    """Return the two captions of other pairs that fit the picture of a pair best; none that repeats."""
    texts, picture = audit.pairs.texts, audit.pairs.image_of[row]
    near, often = audit.neighbours.captions[picture], audit.belief.context.copies.repeated_caption
    near = near[(near >= 0) & (audit.pairs.image_of[near] != picture) & ~often[near]]
    return [_cut(texts[other], FOLD) for other in near[:2]] if texts else []


def _card(
    audit: Findings, row: int, pictures: dict[int, str], alike: dict[int, tuple[int, int]]
) -> dict[str, Any]:
    """Return a pair as the page shows it, beside the picture proposed for its caption."""
    pair = audit.table.iloc[row].to_dict()
    partner = audit.pairs.row_of.get(pair["partner_id"])
    given, other = (None if r is None else _figure(audit, r, pictures) for r in (row, partner))
    known, reason = pair["p_wrong"] == pair["p_wrong"], pair["reason"]
    said = {
        "kind": kind_of(reason),
        "verdict": verdict(pair["p_wrong"]) if known else "",
        "why": f"The {audit.pairs.words.caption} {reason}." if known and reason else reason,
    }
    fits = _fitting(audit, row) if known and partner is None and pair["p_wrong"] >= WRONG_FROM else []
    shown = {"given": given, "partner": other, "fits": fits, "alike": alike.get(row)}
    return {"row": row, "pair": pair, **shown, **said}


def _figure(audit: Findings, row: int, pictures: dict[int, str]) -> dict[str, Any]:
    pairs, picture = audit.pairs, int(audit.pairs.image_of[row])
    name = pairs.pictures[picture] if pairs.pictures else ""
    if name and not pairs.sentences and picture not in pictures:
        pictures[picture] = _thumbnail(pairs, picture)
    return {
        "picture": picture,
        "name": name,
        "alt": re.split(r"[/\\]", name)[-1],
        "shown": bool(pictures.get(picture)),
        "text": pairs.sentences,
        "address": bool(re.match(r"https?://", name, re.IGNORECASE)),
        "caption": pairs.texts[row] if pairs.texts else None,
    }


def _steps(audit: Findings, t: NDArray[Any]) -> str:
    """Return ids and, for each, the number of thresholds that drop it, as base64 of gzip of JSON."""
    if len(audit.table) > LISTED:
        return ""
    p = audit.table["p_wrong"].to_numpy(float)
    steps = np.where(audit.pairs.usable, np.searchsorted(t, p, side="right"), len(t) + 1)
    content = json.dumps({"ids": audit.pairs.ids, "steps": steps.tolist()})
    return base64.b64encode(gzip.compress(content.encode(), compresslevel=4, mtime=0)).decode()


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _cut(text: str, length: int = SHORT) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _thumbnail(pairs: Pairs, picture: int) -> str:
    """Return a small copy of a picture as a data URI; empty when it cannot be read."""
    try:
        small = pairs.thumbnail(picture, SIZES[0][0])
    except UnreadableError:
        return ""
    for side, quality in SIZES:
        small.thumbnail((side, side))
        content = io.BytesIO()
        small.save(content, "JPEG", quality=quality, optimize=True)
        if content.tell() <= PICTURE_BYTES:
            break
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


# -- the command --------------------------------------------------------------------------------------------


def summary(audit: Findings) -> str:
    """Return what an audit found in a few lines: the share of wrong pairs, and the first suspects."""
    pairs, share = audit.pairs, audit.share
    lines = [*audit.warnings, f"{len(pairs):,} pairs of {len(pairs.images):,} {pairs.words.picture}s"]
    if pairs.problems:
        reasons = Counter(pairs.problems.values()).most_common(PRINTED)
        said = "; ".join(f"{beginning(reason)} ({n:,})" for reason, n in reasons)
        lines.append(f"{len(pairs.problems):,} could not be judged: {said}")
    if np.isfinite(share.value):
        interval = f"{share.low:.1%} to {share.high:.1%}"
        lines.append(f"about {share.value:.1%} are wrong ({interval}) by the score {audit.score}")
    lines += [
        f"  {beginning(one.value)}: {one.share:.1%} of {one.pairs:,} ({one.low:.1%} to {one.high:.1%})"
        for one in audit.by.head(SHOWN).itertuples()
    ]
    if audit.inside is not None:
        lines.append(f"  {audit.inside}")
    lines += audit.findings
    moved = [one for one in audit.patterns if one["kind"] == "shift"]
    lines += [
        f"{len(one['ids']):,} pairs, {beginning(one['ids'][0])} to {beginning(one['ids'][-1])}, lie in a run "
        f"that is moved by {one['by']:+d} {one['unit']}{'s' * (abs(one['by']) > 1)}."
        for one in moved[:SHOWN]
    ]
    blind = "" if audit.blind_spot is None else str(audit.blind_spot)
    lines += filter(None, (audit.assumption, blind, audit.belief.weakness))
    # Who labelled a pair knows it: what to look at next are the others.
    first = audit.unlabelled.dropna(subset="p_wrong").head(PRINTED)
    if len(first):
        lines += ["", f"the most suspicious pairs{' without a label' if audit.labels else ''}:"]
    for row in first.itertuples():
        lines.append(f"  P(wrong) {row.p_wrong:.2f}  {beginning(row.id)}  {beginning(row.caption)}")
    return "\n".join(lines)
