"""Report of an audit: one HTML file with charts, a threshold, and suspects to mark. It needs no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from nclib.audit import charts
from nclib.audit.show import weakness
from nclib.common.files import digest, write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from nclib.audit.result import Audit

SUSPECTS = 200
ASKED = 60  # pairs in the list of those whose label teaches most
ROWS = 50  # of a table on the page; the files beside it hold the rest
FOLD = 200  # characters of a caption that are shown at once
SHORT = 300  # characters of an id, a file name or a reason
LONGEST = 20_000  # characters of a caption on the page
PICTURE_BYTES = 15_000
SIZES = (
    (256, 75),
    (256, 50),
    (192, 50),
    (128, 40),
    (64, 30),
)  # side in pixels and JPEG quality, tried in turn
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # none that starts another program, such as EPS
LISTED = 2_000_000  # pairs up to which the page itself makes the list of kept ids
START = 0.5  # threshold that the page opens with, and of the lists of Audit.save
FILES = {
    "pairs.parquet": "table of all pairs: scores, probabilities, reasons, partners",
    "pairs.csv": "table of all pairs as text",
    "ids.npy": "sorted array of the ids to keep, as DataComp reads it",
    "keep.txt": "ids to keep, one per line, for instance for WebDataset",
    "cleanlab.csv": "columns as cleanlab names them",
    "fiftyone.json": "one field per sample for FiftyOne",
    "audit.json": "settings, checksums, seed, estimated share, expected counts at thresholds",
}
MARKS = {"wrong": "<kbd>W</kbd>rong", "right": "<kbd>R</kbd>ight", "unsure": "<kbd>U</kbd>nsure"}


def write_report(audit: Audit, folder: Path) -> Path:
    """Write the report of an audit as one HTML file without references to other files or servers.

    Parameters
    ----------
    audit : Audit
    folder : path
        Made when missing. Files of :meth:`Audit.save` that lie in it are listed on the page.

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
    folder = Path(folder)
    path = folder / "report.html"
    page = _Page(audit, folder).html()
    # A lone surrogate, as in names of files that are not UTF-8, cannot be written; it becomes "?".
    write_atomically(path, page.encode("utf8", "replace"))
    return path


class _Page:
    """Parts of the page, in its order; ``pictures`` collects what the cards show, each picture once."""

    def __init__(self, audit: Audit, folder: Path) -> None:
        self.audit, self.pairs, self.folder = audit, audit.pairs, folder
        self.table: pd.DataFrame = audit.table.reset_index(drop=True)
        self.row_of = {name: row for row, name in enumerate(audit.pairs.ids)}
        self.judged = np.flatnonzero(self.pairs.usable)
        # Without probabilities, as for a few pairs, the order by score remains.
        self.stated = bool(np.isfinite(audit.share.value))
        self.pictures: dict[int, str] = {}  # data URI by picture row, "" where there is none to show
        self.shown: dict[int, str] = {}  # id by row of the pairs that can be marked

    def html(self) -> str:
        style, script = (_file(f"report.{end}") for end in ("css", "js"))
        policy = (
            f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        )
        sections = [
            ("scores", "Scores and probabilities", self._charts()),
            ("costs", "Choose a threshold", self._threshold()),
            ("suspects", "The most suspicious pairs", self._suspects()),
            ("asked", "Pairs whose label teaches most", self._asked()),
            ("patterns", "Patterns", self._patterns()),
            ("duplicates", "Duplicates", self._duplicates()),
            ("problems", "Pairs that could not be judged", self._problems()),
            ("files", "Files and settings", self._files()),
        ]
        return Template(_file("report.html")).substitute(
            policy=policy,
            title=f"Audit of {len(self.table):,} picture-caption pairs",
            style=style,
            script=script,
            headline=self._headline(),
            contents="".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections),
            sections="\n".join(
                f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>\n{body}\n</section>'
                for name, title, body in sections
            ),
            data=_json(self._data()),
        )

    def _data(self) -> dict[str, Any]:
        pairs = self.pairs
        names = json.dumps([pairs.ids, pairs.texts, pairs.pictures])
        return {
            # Of the pairs alone, so that marks survive a recalibration.
            "checksum": digest([names, np.asarray(pairs.image_of)])[:16],
            "pairs": len(self.judged),
            "threshold": self._curve(),
            "rows": self._steps(),
            "ids": self.shown,
            "labels": list(self.audit.labels.items()),
            "pictures": {row: uri for row, uri in self.pictures.items() if uri},
        }

    # -- head ------------------------------------------------------------------------------------------------

    def _headline(self) -> str:
        share, left_out, weak = self.audit.share, len(self.pairs.problems), weakness(self.audit)
        found = "The share of wrong pairs is unknown"
        if self.stated:
            found = f"About {_percent(share.value)} of the pairs are wrong"
        facts = [
            f"95 % interval {_percent(share.low)} to {_percent(share.high)}",
            f"{len(self.table):,} pairs of {len(self.pairs.images):,} pictures",
            f"score: {escape(str(self.audit.score))}",
        ]
        if left_out:
            facts.append(f'<a href="#problems">not judged: {left_out:,}</a>')
        return (
            f'<p class="share">{found}</p>\n'
            f'<p class="facts">{" · ".join(facts)}</p>\n'
            "<p>This page says which captions probably do not describe their pictures, and how sure "
            "that is. Mark some of the pairs below, save <code>checked.csv</code> and run the audit again "
            "with it: your marks correct the probabilities. Then choose a threshold by what it costs, and "
            "train on the pairs that are kept.</p>\n"
            f'<p class="note"><strong>Assumption.</strong> {escape(self.audit.assumption)}</p>'
            + (f'<p class="note"><strong>Weak score.</strong> {escape(weak)}</p>' if weak else "")
        )

    # -- charts ----------------------------------------------------------------------------------------------

    def _charts(self) -> str:
        curves = self.audit.curves
        named = [
            ("given", "given pairs", curves["given"]),
            ("exchanged", "random exchanges", curves["exchanged"]),
            ("near", "near-neighbour exchanges", curves["near"]),
        ]
        score = f"score ({escape(str(self.audit.score))}), larger fits better"
        bins = [(float(p), float(share), int(n)) for p, share, n in curves["reliability"]]
        rows = [[f"{p:.3f}", f"{share:.3f}", f"{n:,}"] for p, share, n in bins if n]
        head = ["stated probability", "share exchanged", "pairs"]
        numbers = _table("Pairs in each bin", head, rows, numbers=True)
        return (
            "<p>Captions were exchanged on purpose to see how wrong pairs score. The more the given pairs "
            "overlap with the exchanged ones, the less sure the audit can be.</p>"
            f'<div class="charts"><figure>{charts.histogram(curves["edges"], named, score)}'
            "<figcaption>Score of the given pairs and of exchanged ones; each curve has the same area."
            "</figcaption></figure>"
            f"<figure>{charts.reliability(bins)}"
            "<figcaption>Some pairs were exchanged on purpose and the audit was repeated: where it states "
            "a probability, how many are really exchanged? Dots on the dashed line are well calibrated; "
            "larger dots have more pairs, bars are intervals of 95 %.</figcaption>"
            f"<details><summary>Numbers of this chart</summary>{numbers}</details></figure></div>"
        )

    # -- threshold -------------------------------------------------------------------------------------------

    def _curve(self) -> dict[str, list[float]]:
        """Return the expected counts by rising threshold."""
        curve = self.audit.curves["threshold"]
        if not isinstance(curve, Mapping):
            curve = dict(zip(("t", "dropped", "wrong_kept", "right_lost"), curve, strict=True))
        order = np.argsort(np.asarray(curve["t"]))
        return {name: np.asarray(curve[name], float)[order].tolist() for name in curve}

    def _steps(self) -> str:
        """Return ids and, for each, the number of thresholds that drop it, as base64 of gzip of JSON."""
        if len(self.table) > LISTED:
            return ""
        t = np.asarray(self._curve()["t"])
        p = self.table["p_wrong"].to_numpy(float)
        steps = np.where(self.pairs.usable, np.searchsorted(t, p, side="right"), len(t) + 1)
        content = json.dumps({"ids": self.pairs.ids, "steps": steps.tolist()})
        return base64.b64encode(gzip.compress(content.encode(), compresslevel=4, mtime=0)).decode()

    def _threshold(self) -> str:
        if not self.stated:
            return "<p>There are no probabilities, and therefore no threshold to choose.</p>"
        curve = self._curve()
        t = np.asarray(curve["t"])
        start = int(np.abs(t - START).argmin())
        names = {
            "dropped": "Pairs dropped",
            "wrong_kept": "Expected wrong pairs kept",
            "right_lost": "Expected right pairs lost",
        }
        boxes = "".join(
            f'<div><dt>{label}</dt><dd><span id="{name}"></span><small id="{name}_of"></small></dd></div>'
            for name, label in names.items()
        )
        parquet = (self.folder / "pairs.parquet").is_file()
        table = "read_parquet('pairs.parquet')" if parquet else "read_csv('pairs.csv', dtype={'id': str})"
        tenths = sorted({int(np.abs(t - goal).argmin()) for goal in np.arange(0.1, 0.95, 0.1)})
        rows = [[f"{t[k]:.6g}", *(f"{curve[name][k]:,.0f}" for name in names)] for k in tenths]
        numbers = _table("Costs of thresholds", ["P(wrong) from", *names.values()], rows, numbers=True)
        button = (
            '<p><button type="button" id="keep">Save keep.txt</button> '
            '<span role="status" id="keep_status"></span></p>'
        )
        return (
            "<p>A pair is dropped when its P(wrong) is at the threshold or above. The two expected numbers "
            "hold under the assumption above.</p>"
            '<div class="screen"><label for="threshold">Drop pairs with P(wrong) of at least '
            '<strong class="at"></strong></label>'
            f'<input type="range" id="threshold" min="0" max="{len(t) - 1}" step="1" value="{start}">'
            f'<dl class="costs">{boxes}</dl>{button if len(self.table) <= LISTED else ""}'
            "<p>The same list by a command in the folder of this page (<code>keep.txt</code> there was "
            f"written with the threshold {START}):</p>"
            f'<pre><code>python -c "import pandas; t = pandas.{table}; '
            't.id[t.p_wrong &lt; <span class="at"></span>].to_csv(\'keep.txt\', index=False, header=False)"'
            "</code></pre></div>"
            f"<details><summary>Costs of some thresholds as a table</summary>{numbers}</details>"
        )

    # -- cards -----------------------------------------------------------------------------------------------

    def _suspects(self) -> str:
        known = self.table["id"].isin(list(self.audit.labels)).to_numpy()
        left = self.judged[~known[self.judged]]
        rows = left[np.argsort(self.table["rank"].to_numpy()[left], kind="stable")][:SUSPECTS]
        return (
            "<p>Choose a pair, then press <kbd>W</kbd> for wrong, <kbd>R</kbd> for right, <kbd>U</kbd> for "
            "unsure, the arrow keys to move and <kbd>Z</kbd> to undo; or use the buttons. Marks stay in this "
            "browser where it allows that; <code>checked.csv</code> holds all of them"
            + (f", and the {known.sum():,} given before, which are not shown again" if known.any() else "")
            + ".</p>"
            + self._cards("list_suspects", rows)
        )

    def _asked(self) -> str:
        rows = [self.row_of[name] for name in self.audit.ask(ASKED)["id"]]
        return (
            "<p>Labels of these pairs correct the probabilities most. Give the marks back with "
            '<code>nclib audit … --labels checked.csv</code> or <code>audit.tell("checked.csv")</code>.</p>'
            + self._formula_note()
            + self._cards("list_asked", rows)
        )

    def _formula_note(self) -> str:
        if not any(name.startswith(("=", "+", "-", "@")) for name in self.shown.values()):
            return ""
        return (
            '<p class="note">Some ids begin like a formula of a spreadsheet, and <code>checked.csv</code> '
            "holds them unchanged: open it in a text editor, not in a spreadsheet.</p>"
        )

    def _cards(self, name: str, rows: Iterable[int]) -> str:
        cards = "\n".join(self._card(name, place, int(row)) for place, row in enumerate(rows, 1))
        if not cards:
            return "<p>There is none.</p>"
        return f'<p class="soft" id="{name}_done"></p>\n<ol class="cards" id="{name}">{cards}</ol>'

    def _card(self, name: str, place: int, row: int) -> str:
        pair = self.table.iloc[row]
        self.shown[row] = pair["id"]
        heading = f"{name}_{place}"
        p = f"score {pair['score']:.3f}"
        if self.stated:
            said, low, high = (_percent(pair[name]) for name in ("p_wrong", "p_low", "p_high"))
            interval = "" if said == low == high else f" ({low} to {high})"
            p = f"<strong>P(wrong) {said}</strong>{interval} · {p}"
        reason = f"<p>{_text(pair['reason'])}</p>" if _given(pair["reason"]) else ""
        buttons = "".join(
            f'<button type="button" data-mark="{label}" aria-pressed="false">{shown}</button>'
            for label, shown in MARKS.items()
        )
        return (
            f'<li class="card" data-pair="{row}" tabindex="-1" aria-labelledby="{heading} {heading}_p">'
            f'<h3 id="{heading}">{place}. {_text(pair["id"])}</h3><p id="{heading}_p">{p}</p>{reason}'
            f'<div class="pair">{self._figure("As given:", row, "given-text")}{self._partner(pair)}</div>'
            f'<div class="marks" role="group" aria-label="Your mark">{buttons}</div></li>'
        )

    def _partner(self, pair: pd.Series) -> str:
        if not _given(pair["partner_id"]) or pair["partner_id"] not in self.row_of:
            return '<figure><div class="none">no other picture is proposed</div></figure>'
        partner = self.row_of[pair["partner_id"]]
        facts = ", ".join(
            f"{label} {value:{form}}"
            for label, value, form in (
                ("P(right picture, if the pair is wrong and it is here)", pair["partner_p"], ".0%"),
                ("score", pair["partner_score"], ".3f"),
            )
            if _given(value)
        )
        better = f"Fits better ({facts})" if facts else "Fits better"
        return self._figure(f"{better}: picture of {_text(pair['partner_id'])}, whose caption is", partner)

    def _figure(self, label: str, row: int, style: str = "") -> str:
        texts = self.pairs.texts
        caption = _folded(texts[row], style) if texts else "<i>no text given</i>"
        picture = self._picture(int(self.pairs.image_of[row]))
        return f"<figure>{picture}<figcaption>{label} {caption}</figcaption></figure>"

    def _picture(self, row: int) -> str:
        names = self.pairs.pictures
        if not names or not names[row]:
            return f'<div class="none">picture {row}: no file given</div>'
        if row not in self.pictures:
            self.pictures[row] = _thumbnail(names[row])
        name = names[row]
        if self.pictures[row]:
            alt = escape(_cut(re.split(r"[/\\]", name)[-1], SHORT))
            return f'<img data-picture="{row}" alt="{alt}" decoding="async">'
        if re.match(r"https?://", name, re.IGNORECASE):
            link = f'<a href="{escape(name)}" target="_blank" rel="noopener noreferrer">open its address</a>'
            return f'<div class="none">{_text(name)}{link}</div>'
        return f'<div class="none">{_text(name)}<span>cannot be shown</span></div>'

    # -- findings --------------------------------------------------------------------------------------------

    def _patterns(self) -> str:
        kinds: dict[str, list[dict[str, Any]]] = {"shift": [], "swap": [], "orphan": []}
        for pattern in self.audit.patterns:
            kinds.setdefault(pattern["kind"], []).append(pattern)
        parts = []
        for kind, found in kinds.items():
            if found:
                head, say = _PATTERNS.get(kind, (kind, _ids))
                items = "".join(f"<li>{say(one)}</li>" for one in found[:ROWS])
                parts.append(f"<h3>{escape(head)}: {len(found):,}</h3><ul>{items}</ul>{_more(len(found))}")
        return "".join(parts) or "<p>No exchanged pairs, no shifted rows and no orphans were found.</p>"

    def _duplicates(self) -> str:
        columns = {"image_duplicate_of": "same picture as", "caption_duplicate_of": "same caption as"}
        has = self.table[list(columns)].notna() & (self.table[list(columns)] != "")
        rows = np.flatnonzero(has.any(axis=1))
        if not len(rows):
            return "<p>No picture and no caption occurs twice.</p>"
        counts = " and ".join(f"{int(has[c].sum()):,} with the {label}" for c, label in columns.items())
        cells = [
            [_text(self.table["id"][row]), self._excerpt(int(row))]
            + [_text(self.table[c][row]) if has[c][row] else "" for c in columns]
            for row in rows[:ROWS]
        ]
        table = _table("Duplicates", ["id", "caption", *columns.values()], cells)
        return f"<p>Pairs: {counts} an earlier one.</p>{table}{_more(len(rows))}"

    def _excerpt(self, row: int) -> str:
        return _text(_cut(self.pairs.texts[row], 80)) if self.pairs.texts else ""

    def _problems(self) -> str:
        problems = self.pairs.problems
        if not problems:
            return "<p>None: every pair was judged.</p>"
        counts = Counter(problems.values())
        summary = [[_text(reason), f"{n:,}"] for reason, n in counts.most_common(ROWS)]
        rows = [
            [_text(self.table["id"][row]), _text(reason), self._excerpt(row)]
            for row, reason in sorted(problems.items())[:ROWS]
        ]
        few = len(counts) < len(problems)
        return (
            "<p>These pairs have no probability, count in no number above and are in no list of kept "
            "pairs.</p>"
            + (_table("Pairs by reason", ["reason", "pairs"], summary) if few else "")
            + _table("Pairs with problems", ["id", "reason", "caption"], rows)
            + _more(len(problems))
        )

    # -- files -----------------------------------------------------------------------------------------------

    def _files(self) -> str:
        there = [[f'<a href="{n}">{n}</a>', what] for n, what in FILES.items() if (self.folder / n).is_file()]
        settings = {**self.audit.settings, "seed": self.audit.seed}
        rows = [[_text(name), _text(_setting(value))] for name, value in settings.items()]
        return (_table("Files beside this page", ["file", "content"], there) if there else "") + _table(
            "Settings", ["setting", "value"], rows
        )


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_setting(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ids(pattern: Mapping[str, Any]) -> str:
    ids = pattern["ids"]
    shown = ", ".join(_text(name) for name in ids[:5])
    return shown if len(ids) <= 5 else f"{shown} and {len(ids) - 5:,} more"


def _run(pattern: Mapping[str, Any]) -> str:
    ids, by, unit = pattern["ids"], pattern["by"], pattern["unit"]
    moved = f"captions moved by {by} {unit}{'' if abs(by) == 1 else 's'}"
    return f"{_text(ids[0])} to {_text(ids[-1])}: {len(ids):,} pairs, {moved}"


_PATTERNS = {
    "swap": ("Two pairs whose captions are exchanged", _ids),
    "shift": ("Runs of rows whose captions are shifted", _run),
    "orphan": ("Captions that fit no picture", _ids),
}


def _file(name: str) -> str:
    return files("nclib.audit").joinpath(name).read_text("utf8")


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _json(value: Any) -> str:
    """Return JSON that can stand in a script element: ASCII without ``<``, ``>`` and ``&``."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&"})


def _given(value: Any) -> bool:
    return value is not None and value == value and value != ""  # NaN differs from itself


def _percent(value: float) -> str:
    percent = 100 * float(value)
    if 0 < percent < 0.1 or 99.9 < percent < 100:
        return "less than 0.1 %" if percent < 50 else "more than 99.9 %"
    return f"{percent:.{1 if 0 < percent < 10 or 99 < percent < 100 else 0}f} %"


def _text(value: Any) -> str:
    """Return what a stranger wrote in short: escaped, in its own direction of writing."""
    return f'<bdi dir="auto">{escape(_cut(str(value), SHORT))}</bdi>'


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _folded(caption: str, style: str = "") -> str:
    """Return a caption, escaped; the part beyond ``FOLD`` characters is shown on demand."""
    start = f'<span class="text {style}" dir="auto">'
    if len(caption) <= FOLD:
        return f"{start}{escape(caption)}</span>"
    note = "" if len(caption) <= LONGEST else f" (the first {LONGEST:,} here)"
    return (
        f"{start}{escape(caption[:FOLD])}…</span><details><summary>show all {len(caption):,} characters{note}"
        f"</summary>{start}{escape(caption[:LONGEST])}</span></details>"
    )


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """Return a table; the cells are HTML."""
    style = ' class="number"' if numbers else ""
    top = "".join(f'<th scope="col"{style}>{cell}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td{style}>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table><caption>{caption}'
        f"</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _more(n: int) -> str:
    if n <= ROWS:
        return ""
    return f'<p class="soft">{n - ROWS:,} more are in the files beside this page.</p>'


def _thumbnail(name: str) -> str:
    """Return a small copy of a picture as a data URI; empty when it cannot be read."""
    from PIL import Image, ImageOps

    try:
        if not Path(name).is_file():  # an address, or a device that would never end
            return ""
        with Image.open(name, formats=FORMATS) as file:
            side = SIZES[0][0]
            picture = file if file.mode in ("RGB", "L") else file.convert("RGBA")
            picture.thumbnail((side, side))
            picture = ImageOps.exif_transpose(picture).convert("RGBA")
        # On a new white picture, for transparent ones, and to leave comments and positions behind.
        small = Image.new("RGB", picture.size, "white")
        small.paste(picture, mask=picture.getchannel("A"))
        for side, quality in SIZES:
            small.thumbnail((side, side))
            content = io.BytesIO()
            small.save(content, "JPEG", quality=quality, optimize=True)
            if content.tell() <= PICTURE_BYTES:
                break
    except Exception:  # a picture that cannot be read, in any of the ways that decoders fail, has no copy
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
