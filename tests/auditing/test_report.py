"""The audit's report: one safe HTML file, whatever strangers wrote into captions, ids and file names."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.style
import numpy as np
import pandas as pd
import pytest

import nclib
from nclib.auditing import Pairs
from nclib.auditing.figures import histogram, reliability
from nclib.auditing.report import notebook_view, write_report
from nclib.auditing.result import threshold_costs
from nclib.auditing.share import Share

HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "</script></style></title><svg onload=alert(3)>",
    "\"><b onmouseover='alert(4)'> &lt;i&gt; ${data} {{script}} $data",
    "\u202eright to left override \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "emoji \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "line\u2028separator\u2029 \x00 \x1b[31m lone",
    "word " * 2000,
    "x" * 10_000,
    "<!-- comment --> ]]> <![CDATA[ x",
    '=HYPERLINK("http://example.org","click")',
    "a\u0300\u0301\u0302" * 200,
    "",
]


def named(texts):
    return [f"{k} {' '.join(text.split())[:60]}" for k, text in enumerate(texts)]


def made(texts, problems=(), **change):
    """Return an audit of pairs whose pictures cannot be read, with probabilities from high to low."""
    n, rng = len(texts), np.random.default_rng(0)
    images = rng.normal(size=(n, 8)).astype(np.float32)
    ids = named(texts)
    names = [f"{text}.jpg" for text in texts]
    why = dict.fromkeys(problems, f"picture is missing {HOSTILE[0]}")
    audit = nclib.audit(Pairs(images, images, np.arange(n), ids, texts, names, why), progress=False)
    p = np.linspace(0.999, 0.001, n)
    p[list(problems)] = np.nan
    ends = {"p_wrong": p, "p_low": np.clip(p - 0.05, 0, 1), "p_high": np.clip(p + 0.05, 0, 1)}
    rank = np.argsort(np.argsort(-np.nan_to_num(p, nan=-1))) + 1
    table = audit.table.assign(
        **ends, rank=rank, reason="fits its picture badly", partner_id=[*ids[1:], ""], partner_p=0.8
    )
    curves = {**audit.curves, "threshold": threshold_costs(table["p_wrong"])}
    curves["reliability"] = [(0.05, 0.04, 900), (0.5, 0.55, 40), (0.95, 0.97, 300), (0.7, 0.0, 0)]
    share = Share(0.25, 0.2, 0.3)
    calibration = replace(audit.belief.calibration, share=share, reason="")
    # Without curves nothing can be said of exchanges with similar pictures.
    opinions = tuple(replace(one, values=[v[:0] for v in one.values]) for one in audit.belief.opinions)
    of = {"calibration": calibration, "opinions": opinions, "second": share, "contradicted": ("rank", share)}
    belief = replace(audit.belief, **of)
    return replace(audit, belief=belief, table=table, curves=curves, **change)


class Page(HTMLParser):
    """Elements with their attributes and the text in them, as a browser's parser would see them."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.texts, self.open = [], [], []
        self.source = path.read_bytes().decode("utf8")
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def text_in(self, tag):
        return ["".join(t for name, t in [piece] if name == tag) for piece in self.texts if piece[0] == tag]

    @property
    def data(self):
        return json.loads(self.text_in("script")[0])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    ids = named(HOSTILE)
    kinds = ("swap", ids[:2], None), ("shift", ids[:7], 1), ("orphan", ids[2:3], None)
    audit = made(
        HOSTILE,
        problems=[11],
        patterns=[{"kind": kind, "ids": ids, "by": by, "unit": "row"} for kind, ids, by in kinds],
        settings={"score": "auto", "seed": 0, "path": HOSTILE[1], "auroc_on_exchanged": {"rank": 0.91234567}},
        repeats=pd.DataFrame({"kind": ["caption"], "name": [HOSTILE[0]], "times": [342], "wrong": [0.97]}),
        found=[HOSTILE[0]],
    )
    audit.by = pd.DataFrame(
        {"value": [HOSTILE[1]], "pairs": [7], "share": [0.5], "low": [0.25], "high": [0.75]}
    )
    audit.table.loc[3, "caption_duplicate_of"] = audit.pairs.ids[1]
    path = write_report(audit, tmp_path_factory.mktemp("report") / "new")
    assert path.name == "report.html"
    return audit, Page(path)


def test_what_strangers_wrote_is_text(hostile):
    _, page = hostile
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"iframe", "object", "embed", "link", "base", "form"})
    assert len(page.all("script")) == 2
    assert len(page.all("style")) == 1
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<script>alert" not in page.source
    assert "<svg onload" not in page.source
    shown = "".join(text for tag, text in page.texts if tag != "script")
    for text in HOSTILE[:10]:
        assert text[:200].encode("utf8", "replace").decode() in shown
    captions = [a for a in page.all("span") if a.get("class", "").startswith("text")]
    assert all(a.get("dir") == "auto" for a in [*captions, *page.all("bdi")])


def test_long_captions_are_folded(hostile):
    _, page = hostile
    assert "show all 10,000 characters" in page.source
    assert page.source.count("x" * 10_000) == 4  # in two lists, as the given caption and as the partner's
    before = page.source[: page.source.index("x" * 10_000)]
    assert before.rindex("<details>") > before.rindex("x" * 200)


def test_only_the_two_inline_parts_are_admitted(hostile):
    _, page = hostile
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for name, tag, part in (("script-src", "script", 1), ("style-src", "style", 0)):
        content = page.text_in(tag)[part]
        made = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{made}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data:"
    assert not [a for _, a in page.elements if "style" in a]  # the policy would drop it


def test_nothing_is_loaded_from_elsewhere(hostile):
    _, page = hostile
    assert not [a for _, a in page.elements for name in ("src", "srcset", "action", "poster") if name in a]
    assert all(a["href"].startswith("#") for a in page.all("a"))
    assert "url(" not in page.text_in("style")[0]
    assert "@import" not in page.text_in("style")[0]


def test_every_label_and_anchor_has_its_element(hostile):
    _, page = hostile
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    wanted = [a["href"][1:] for a in page.all("a")]
    for name in ("aria-labelledby", "for"):
        wanted += [word for _, a in page.elements for word in a.get(name, "").split()]
    assert set(wanted) <= set(ids)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_a_threshold_keeps_what_the_table_says(hostile):
    audit, page = hostile
    shown = {int(row): name for row, name in page.data["ids"].items()}
    assert shown == {row: audit.table["id"][row] for row in range(11)}  # pair 11 has a problem and no card
    rows = json.loads(gzip.decompress(base64.b64decode(page.data["rows"])))
    assert rows["ids"] == audit.table["id"].tolist()
    curve = page.data["threshold"]
    for k, t in enumerate(curve["t"]):
        keep = [name for name, step in zip(rows["ids"], rows["steps"], strict=True) if step <= k]
        assert keep == audit.table["id"][audit.table["p_wrong"] < t].tolist()
        assert len(keep) == page.data["pairs"] - curve["dropped"][k]


def test_share_assumption_and_findings_are_said(hostile):
    _, page = hostile
    for said in (
        "Two estimates of the share",
        "<li>&lt;script&gt;alert(1)",
        "About 25 % of the pairs are wrong",
        "95 % interval 20 % to 30 %",
        "captions that do not belong to their picture at all",
        ">not judged: 1<",
        "captions moved by 1 row<",
        "rank 0.9123",
        "0 pairs have a picture, and 1 pair has a caption, that an earlier pair has already.",
        "<strong>Almost certainly wrong</strong> (99.9 %, between 95 % and 100 %).",
        "The caption fits its picture badly.",
        ">342<",
        ">25 % to 75 %<",
    ):
        assert said in page.source, said


def test_the_page_begins_with_the_suspects_and_where_parts_disagree_with_what_to_ask(tmp_path):
    for ask_first in (False, True):
        audit = made(["A", "B"])
        if not ask_first:
            audit.belief = replace(audit.belief, contradicted=None)
        page = Page(write_report(audit, tmp_path))
        sections = [a["id"] for tag, a in page.elements if tag == "h2"]
        assert sections[:2] == (["asked", "suspects"] if ask_first else ["suspects", "asked"])
        assert sections.index("scores") > sections.index("costs") > sections.index("patterns")
        cards = [a for a in page.all("li") if a.get("class") == "card"]
        assert {a["data-kind"] for a in cards} == {"fits its picture badly"}
        assert [a["value"] for a in page.all("option")] == ["", "fits its picture badly"]
        order = [tag for tag, _ in page.elements]
        assert order.index("img" if "img" in order else "figure") < order.index("h3")
        assert not re.search(r"score 0\.|plan_|P\(wrong\)", page.source.partition("<script")[0])


def test_a_card_shows_what_fits_and_the_pairs_that_one_mark_decides(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(120, 32)).astype(np.float32)
    captions, texts = images + 0.1, [f"caption {k}" for k in range(120)]
    captions[:20], texts[:20] = -captions.mean(0), ["nothing to say"] * 20
    captions[[40, 41]] = captions[[41, 40]]
    audit = nclib.audit(images, captions, texts=texts, progress=False)
    audit.table["partner_id"] = ""  # none is proposed
    page = Page(write_report(audit, tmp_path, again="nclib audit x.csv --labels checked.csv"))
    assert page.data["alike"] == [audit.pairs.ids[:20]]
    assert {a["data-alike"] for a in page.all("button") if "data-alike" in a} == {"0"}
    assert "mark these 20 <kbd>A</kbd>like" in page.source
    assert "<code>nclib audit x.csv --labels checked.csv</code>" in page.source
    card = page.source.partition('data-pair="40"')[2].partition("</li>")[0]
    assert "caption 41<" in card.partition("fit this picture better, if any does:")[2].partition("</p>")[0]


def test_an_audit_shows_itself_in_a_notebook():
    texts = HOSTILE[:8] * 2
    html = notebook_view(made(texts))
    assert html.count("<figure") == 12
    assert "About 25 % of the pairs are wrong" in html
    assert html.index("Two estimates of the share") < html.index("About 25 %")
    tags = {"div", "p", "strong", "figure", "figcaption", "bdi", "br", "small", "code"}
    assert set(re.findall(r"<(\w+)", html)) == tags


def test_files_that_exist_are_listed(tmp_path):
    (tmp_path / "pairs.csv").touch()
    page = Page(write_report(made(["A", "B"]), tmp_path))
    assert [a["href"] for a in page.all("a") if not a["href"].startswith("#")] == ["pairs.csv"]


@pytest.mark.parametrize("style", ["default", "dark_background", "bmh"])
def test_figures_take_their_colours_from_the_page(style):
    edges, flat = np.linspace(0, 1, 5), np.ones(4)
    curves = {"edges": edges, "given": flat, "exchanged": flat * np.nan, "near": flat * 0}
    with matplotlib.style.context(style):
        svg = histogram(curves, "score")
        svg += reliability([(0.05, 0.04, 900), (0.5, 0.55, 40), (0.7, 0.0, 0)])
    assert {"var(--given)", "var(--exchanged)", "var(--near)"} <= set(re.findall(r"var\(--\w+\)", svg))
    assert not re.findall(r"#[0-9a-f]{6}\b|style=|font|nan|inf", svg)
    assert "most at 0.125" in svg
    assert "Reliability curve with 2 bins" in svg
    assert "not measured" in reliability([])
