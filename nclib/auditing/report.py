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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nclib.auditing.pairs import Pairs
from nclib.auditing.result import WRONG_FROM, Findings
from nclib.auditing.wording import explained, percent, settings, verdict
from nclib.common.files import digest, write_atomically
from nclib.data.readers import UnreadableError

HERE = Path(__file__).parent
SUSPECTS, ASKED = 200, 60  # pairs on the page: the most suspicious, and those whose label teaches most
FIRST = 12  # suspects in a notebook
ROWS = 50  # of a table on the page; the files beside it hold the rest
FOLD = 200  # characters of a caption that are shown at once
SHORT = 300  # characters of an id, a file name or a reason
LONGEST = 20_000  # characters of a caption on the page
PICTURE_BYTES = 15_000
SIZES = ((256, 75), (256, 50), (192, 50), (128, 40), (64, 30))  # side in pixels, JPEG quality, tried in turn
LISTED = 2_000_000  # pairs up to which the page itself makes the list of kept ids
PRINTED, PRINTED_WIDTH = 5, 60  # in the terminal: pairs and reasons; characters of a caption
SHOWN = 10  # groups in the terminal
# Colours of the figures (Okabe and Ito's, as everywhere in the book), and their names in the style sheet,
# where a dark page has others.
GIVEN, EXCHANGED, NEAR, INK, SOFT = "#0072b2", "#d55e00", "#009e73", "#000000", "#7a7a7a"
NAMES = {GIVEN: "given", EXCHANGED: "exchanged", NEAR: "near", INK: "ink", SOFT: "soft"}
# A report looks the same whatever style its caller has set.
in_own_style = matplotlib.style.context(["default", {"svg.fonttype": "none", "svg.hashsalt": "nclib"}])
METADATA = ("Date", "Creator", "Format", "Type")  # of a figure, left out
Z95 = 1.959964  # of the normal distribution, for an interval of 95 %


def write_report(audit: Findings, folder: str | Path) -> Path:
    """Write the report of an audit as one HTML file without references to other files or servers.

    Parameters
    ----------
    audit : Findings
    folder : path
        Made when missing. Files of :meth:`Findings.save` that lie in it are listed on the page.

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
        **_contents(audit, path.parent),
    )
    # A lone surrogate, as in names of files that are not UTF-8, cannot be written; it becomes "?".
    write_atomically(path, page.encode("utf8", "replace"))
    return path


def notebook_view(audit: Findings) -> str:
    """Return what a notebook shows of an audit: the share, and the first suspects with their pictures."""
    pictures: dict[int, str] = {}
    cards = [_card(audit, row, pictures) for row in _suspects(audit)[:FIRST]]
    return _template("report.cell.html").render(audit=audit, cards=cards, pictures=pictures, **_facts(audit))


def _template(name: str) -> Template:
    pages = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    pages.policies["json.dumps_kwargs"] = {"allow_nan": False}
    pages.filters |= {"cut": _cut, "percent": percent}
    pages.tests["known"] = lambda value: value == value  # NaN differs from itself
    return pages.get_template(name)


def _facts(audit: Findings) -> dict[str, Any]:
    """Return the facts at the head of both views."""
    return {
        "n_pairs": f"{len(audit.table):,}",
        "n_pictures": f"{len(audit.pairs.images):,}",
        # Without probabilities, as for a few pairs, the order by score remains.
        "stated": bool(np.isfinite(audit.share.value)),
        "weakness": audit.weakness(),
    }


def _contents(audit: Findings, folder: Path) -> dict[str, Any]:
    """Return what the template shows, as plain values."""
    pairs, table, costs = audit.pairs, audit.table.reset_index(drop=True), audit.curves["threshold"]
    pictures: dict[int, str] = {}  # data URI by picture row, "" where there is none to show
    suspects, asked = _suspects(audit), [pairs.row_of[name] for name in audit.ask(ASKED)["id"]]
    t = np.asarray(costs["t"])
    copies = table[["image_duplicate_of", "caption_duplicate_of"]]
    repeated = np.flatnonzero((copies != "").any(axis=1))
    excerpts = [_cut(text, 80) for text in pairs.texts] if pairs.texts else [""] * len(table)
    contents = {
        **_facts(audit),
        "audit": audit,
        "rows_shown": ROWS,
        "fold": FOLD,
        "longest": LONGEST,
        "histogram": histogram(audit.curves, f"score ({audit.score}), larger fits better"),
        "reliability": reliability(audit.curves["reliability"]),
        "bins": [(f"{p:.3f}", f"{share:.3f}", f"{n:,}") for p, share, n in audit.curves["reliability"] if n],
        "costs": {name: np.asarray(values, float).tolist() for name, values in costs.items()},
        "start": int(np.abs(t - WRONG_FROM).argmin()),
        "tenths": sorted({int(np.abs(t - goal).argmin()) for goal in np.arange(0.1, 0.95, 0.1)}),
        "suspects": [_card(audit, row, pictures) for row in suspects],
        "asked": [_card(audit, row, pictures) for row in asked],
        "n_known": int(table["id"].isin(list(audit.labels)).sum()),
        "groups": [
            (one.value, f"{one.pairs:,}", percent(one.share), f"{percent(one.low)} to {percent(one.high)}")
            for one in audit.by.itertuples()
        ],
        "repeats": [
            (one.kind, _cut(str(one.name), 80), f"{one.times:,}", percent(one.wrong))
            for one in audit.repeats.head(ROWS).itertuples()
        ],
        "duplicates": {
            "n": len(repeated),
            "image": int((copies["image_duplicate_of"] != "").sum()),
            "caption": int((copies["caption_duplicate_of"] != "").sum()),
            "rows": [(pairs.ids[row], excerpts[row], *copies.iloc[row]) for row in repeated[:ROWS]],
        },
        "problems": [
            (pairs.ids[row], reason, excerpts[row]) for row, reason in sorted(pairs.problems.items())
        ],
        "problem_counts": [
            (reason, f"{n:,}") for reason, n in Counter(pairs.problems.values()).most_common()
        ],
        "there": {path.name for path in folder.glob("*")},
        "settings": settings({**audit.settings, "seed": audit.seed}),
    }
    contents["reasons"] = Counter(
        one["kind"] for one in contents["suspects"] + contents["asked"]
    ).most_common()
    names = json.dumps([pairs.ids, pairs.texts, pairs.pictures])
    contents["data"] = {
        # Of the pairs alone, so that marks survive a recalibration.
        "checksum": digest([names, np.asarray(pairs.image_of)])[:16],
        "pairs": int(pairs.usable.sum()),
        "threshold": contents["costs"],
        "rows": _steps(audit, t),
        "ids": {row: pairs.ids[row] for row in (*suspects, *asked)},
        "labels": list(audit.labels.items()),
        "edits": list(audit.edits.items()),
        "pictures": {row: uri for row, uri in pictures.items() if uri},
    }
    return contents


def _suspects(audit: Findings) -> list[int]:
    """Return the rows of the most suspicious pairs without a label."""
    table = audit.table
    left = np.flatnonzero(audit.pairs.usable & ~table["id"].isin(list(audit.labels)).to_numpy())
    return left[np.argsort(table["rank"].to_numpy()[left], kind="stable")][:SUSPECTS].tolist()


def _card(audit: Findings, row: int, pictures: dict[int, str]) -> dict[str, Any]:
    """Return a pair as the page shows it, beside the picture proposed for its caption."""
    pair = audit.table.iloc[row].to_dict()
    partner = audit.pairs.row_of.get(pair["partner_id"])
    given, other = (None if r is None else _figure(audit, r, pictures) for r in (row, partner))
    kind, why = explained(pair["reason"])
    known = pair["p_wrong"] == pair["p_wrong"]
    said = {"verdict": verdict(pair["p_wrong"]) if known else "", "kind": kind, "why": why}
    return {"row": row, "pair": pair, "given": given, "partner": other, **said}


def _figure(audit: Findings, row: int, pictures: dict[int, str]) -> dict[str, Any]:
    pairs, picture = audit.pairs, int(audit.pairs.image_of[row])
    name = pairs.pictures[picture] if pairs.pictures else ""
    if name and picture not in pictures:
        pictures[picture] = _thumbnail(pairs, picture)
    return {
        "picture": picture,
        "name": name,
        "alt": re.split(r"[/\\]", name)[-1],
        "shown": bool(pictures.get(picture)),
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


# -- figures ------------------------------------------------------------------------------------------------


@in_own_style
def histogram(curves: Mapping[str, Any], label: str) -> str:
    """Return an ``<svg>`` of the scores of given and exchanged pairs, from :attr:`Findings.curves`."""
    looks = (
        ("given", GIVEN, "given pairs", "-"),
        ("exchanged", EXCHANGED, "random exchanges", "--"),
        ("near", NEAR, "near-neighbour exchanges", ":"),
    )
    figure, axis = _axis(label, "density")
    edges, said = np.asarray(curves["edges"]), []
    for name, colour, title, line in looks:
        heights = np.nan_to_num(curves[name])
        axis.stairs(heights, edges, color=colour, ls=line, lw=1.8, label=title)
        if name == "given":
            axis.stairs(heights, edges, color=colour, fill=True, alpha=0.25)
        peak = int(heights.argmax())
        said.append(f"{title}: most at {(edges[peak] + edges[peak + 1]) / 2:.3g}")
    axis.set_yticks([])
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize="medium")
    return _svg(figure, "histogram", f"Histograms of {label}. {'; '.join(said)}.")


@in_own_style
def reliability(bins: Iterable[tuple[float, float, int]]) -> str:
    """Return an ``<svg>`` of the share exchanged over the stated probability, with intervals of 95 %.

    Parameters
    ----------
    bins : iterable of (mean probability, share exchanged, n)
        Bins without pairs are left out.
    """
    full = np.array([one for one in bins if one[2] > 0], float).reshape(-1, 3)
    figure, axis = _axis("stated probability of an exchange", "share really exchanged")
    axis.plot([0, 1], [0, 1], color=SOFT, ls="--", lw=1)
    axis.text(0.82, 0.72, "as stated", color=SOFT)
    if len(full):
        stated, shares, n = full.T
        ends = np.array([wilson(share, int(k)) for share, k in zip(shares, n, strict=True)])
        axis.plot(stated, shares, color=GIVEN, lw=1.8)
        axis.vlines(stated, *ends.T, color=GIVEN, lw=1.8)
        axis.scatter(stated, shares, (5 + 8 * np.sqrt(n / n.max())) ** 2 / 2, color=GIVEN, zorder=3)
    else:
        axis.text(0.05, 0.9, "not measured", color=INK)
    axis.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    return _svg(
        figure, "reliability", f"Reliability curve with {len(full)} bins; the numbers are in the table."
    )


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for a share among ``n``; (0, 1) for ``n = 0``.

    Examples
    --------
    >>> [round(v, 3) for v in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    if n <= 0:
        return 0.0, 1.0
    centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * np.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def _axis(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure((4.6, 3.05), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    axis.set(xlabel=x, ylabel=y)
    return figure, axis


def _svg(figure: Figure, name: str, said: str) -> str:
    """Return a figure as SVG that a page with a content security policy shows, in the colours of its style.

    The policy admits no style but that of the page: what matplotlib writes as styles become attributes, and
    its colours variables of the style sheet. Ids begin with ``name``, to be unique on the page.
    """
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(METADATA))
    text = out.getvalue()
    text = re.sub(r"<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", text)
    text = re.sub(r'style="([^"]*)"', _attributes, text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{said}" ', 1)


def _attributes(style: re.Match[str]) -> str:
    """Return the attributes that say what an inline style says; fonts are those of the page."""
    parts = [part.split(":", 1) for part in style[1].split(";") if part.strip()]
    known = {key.strip(): value.strip() for key, value in parts if not key.strip().startswith("font")}
    return " ".join(
        f'{key}="{f"var(--{NAMES[value]})" if value in NAMES else value}"' for key, value in known.items()
    )


# -- the command --------------------------------------------------------------------------------------------


def summary(audit: Findings) -> str:
    """Return what an audit found in a few lines: the share of wrong pairs, and the first suspects."""
    pairs, share = audit.pairs, audit.share
    lines = [*audit.warnings, f"{len(pairs):,} pairs of {len(pairs.images):,} pictures"]
    if pairs.problems:
        reasons = Counter(pairs.problems.values()).most_common(PRINTED)
        said = "; ".join(f"{_plain(reason)} ({n:,})" for reason, n in reasons)
        lines.append(f"{len(pairs.problems):,} could not be judged: {said}")
    if np.isfinite(share.value):
        interval = f"{share.low:.1%} to {share.high:.1%}"
        lines.append(f"about {share.value:.1%} are wrong ({interval}) by the score {audit.score}")
    lines += [
        f"  {_plain(one.value)}: {one.share:.1%} of {one.pairs:,} ({one.low:.1%} to {one.high:.1%})"
        for one in audit.by.head(SHOWN).itertuples()
    ]
    lines += audit.findings
    lines += filter(None, (audit.assumption, audit.weakness()))
    # Who labelled a pair knows it: what to look at next are the others.
    to_see = audit.table["p_wrong"].notna() & ~audit.table["id"].isin(list(audit.labels))
    first = audit.table[to_see].sort_values("rank").head(PRINTED)
    if len(first):
        lines += ["", f"the most suspicious pairs{' without a label' if audit.labels else ''}:"]
    for row in first.itertuples():
        lines.append(f"  P(wrong) {row.p_wrong:.2f}  {_plain(row.id)}  {_plain(row.caption)}")
    return "\n".join(lines)


def _plain(text: object) -> str:
    """Return the beginning of a strange text without what a terminal would obey."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text))
    return shown if len(shown) <= PRINTED_WIDTH else f"{shown[: PRINTED_WIDTH - 3]}..."
