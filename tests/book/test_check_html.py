"""The check of built pages finds each kind of damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_html import main, problems

GOOD = """<html><head><link rel="stylesheet" href="_static/a.css?v=1">
<link rel="canonical" href="https://x.org/">
<script src="_static/a.js"></script></head>
<body><h1 id="top">T</h1><a href="#top">up</a> <a href="b.html#part">b</a>
<a href="https://example.org">elsewhere</a> <a href="mailto:a@b.c">mail</a> <a href="sub/">folder</a>
<img alt="" src="data:image/png;base64,AAAA"> <img alt="A space" src="with%20space.png"></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "_static").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / "_static" / "a.css").write_text("p { background: url(a.png) } @import 'b.css';", "utf8")
    (tmp_path / "_static" / "template.html").write_text('<a href="{{ pathto(x) }}">', "utf8")
    for name in ("_static/a.js", "with space.png"):
        (tmp_path / name).write_text("", "utf8")
    (tmp_path / "sub" / "index.html").write_text("<p>folder</p>", "utf8")
    (tmp_path / "b.html").write_text('<p id="part">b</p>', "utf8")
    (tmp_path / "index.html").write_text(GOOD, "utf8")
    return tmp_path


def test_good_pages(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(problems(site)) == []
    assert main(str(site)) == 0
    assert capsys.readouterr().out == "check_html: 0 problems\n"


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ('<a href="gone.html">x</a>', "gone.html does not exist"),
        ('<a href="b.html#gone">x</a>', "b.html#gone points to an anchor that does not exist"),
        ('<a href="#gone">x</a>', "#gone points to an anchor that does not exist"),
        ('<p id="a">x</p><table id="a">', "the anchor a stands there twice"),
        ('<img alt="" src="gone.png">', "gone.png does not exist"),
        ('<img src="with%20space.png">', "the picture with%20space.png has no alternative text"),
        ('<img src="b.html" alt="b.html">', "the picture b.html has no alternative text"),
        ('<script src="https://cdn.example.org/x.js"></script>', "loads https://cdn.example.org/x.js"),
        ('<script src="//cdn.example.org/x.js"></script>', "loads //cdn.example.org/x.js"),
        ('<link rel="stylesheet" href="http://x.org/a.css">', "loads http://x.org/a.css"),
        ('<link rel="preconnect" href="https://x.org">', "loads https://x.org"),
        ('<img alt="" srcset="b.html 1x, https://x.org/2.png 2x">', "loads https://x.org/2.png"),
        ("<style>@import url('https://x.org/f.css');</style>", "loads https://x.org/f.css"),
        ('<p style="background: url(https://x.org/p.png)">', "loads https://x.org/p.png"),
        ('<iframe src="https://x.org/video"></iframe>', "loads https://x.org/video"),
        ('<object data="https://x.org/o.svg"></object>', "loads https://x.org/o.svg"),
    ],
)
def test_damage_is_found(site: Path, html: str, expected: str) -> None:
    (site / "bad.html").write_text(html, "utf8")
    found = list(problems(site))
    assert len(found) == 1
    assert found[0].startswith("bad.html: ")
    assert expected in found[0]
    assert main(str(site)) == 1


def test_style_sheets_are_read(site: Path) -> None:
    (site / "_static" / "a.css").write_text(
        "@font-face { src: url(https://fonts.example.org/a.woff) }", "utf8"
    )
    assert list(problems(site)) == ["_static/a.css: loads https://fonts.example.org/a.woff from the network"]
