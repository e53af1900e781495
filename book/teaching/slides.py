"""Build the slides of the lectures: ``make slides``, then open ``_build/slides/lecture_1.html``.

A lecture is one Markdown file; lines of three dashes part its slides, ``Note:`` begins the speaker's notes.
A picture ``![what it shows](losses#cell-id)`` is the figure of that cell in the executed notebook: slides and
pages show the same. The slides use reveal.js as RISE's wheel brings it, and open without a network.
"""

from __future__ import annotations

import base64
import html
import pathlib
import re
import shutil
import sys
import zipfile
from typing import Any

import nbformat

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

from executed import folder_of  # noqa: E402
from gallery import figures  # noqa: E402

HERE, OUT = pathlib.Path(__file__).parent, ROOT / "_build" / "slides"
REVEAL = "rise/static/reveal.js/"  # in the wheel
KEPT = (
    "css/reveal.css",
    "css/reset.css",
    "css/theme/white.css",
    "css/print/pdf.css",
    "js/reveal.js",
    "LICENSE",
)
KEPT += ("plugin/notes/notes.js", "plugin/notes/notes.html")
CHANGED = {"css/reveal.css": "css/reveal.css.upstream"}  # RISE has taken the page's height out of it
PICTURE = re.compile(r"!\[([^\]]*)\]\((\w+)#([\w-]+)\)")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="reveal/css/reset.css"><link rel="stylesheet" href="reveal/css/reveal.css">
<link rel="stylesheet" href="reveal/css/theme/white.css"><link rel="stylesheet" href="slides.css">
</head><body><div class="reveal"><div class="slides">
{slides}
</div></div>
<script>
if (/print-pdf/.test(location.search)) document.head.insertAdjacentHTML(
  "beforeend", '<link rel="stylesheet" href="reveal/css/print/pdf.css">')
</script>
<script>MathJax = {{svg: {{fontCache: "global"}}}}</script>
<script src="mathjax/tex-svg-full.js"></script><script src="reveal/js/reveal.js"></script>
<script>Reveal.initialize({{hash: true, slideNumber: "c/t", transition: "none", width: 1200, height: 720,
dependencies: [{{src: "reveal/plugin/notes/notes.js", async: true}}]}})</script>
</body></html>
"""


def picture(name: str, cell: str, alt: str, folder: pathlib.Path) -> str:
    """Return the figure of a notebook's cell as an image that holds its data."""
    path = folder / f"{name}.ipynb"
    if not path.exists():
        raise SystemExit(f"{name}.ipynb was not executed with the present code and data: make html first")
    drawn = {at: (kind, data) for at, kind, data in figures(nbformat.read(path, 4))}
    if cell not in drawn:
        raise SystemExit(
            f"{name}.ipynb has no figure in a cell {cell!r}; figures: {', '.join(drawn) or 'none'}"
        )
    kind, data = drawn[cell]
    kind = {"svg": "svg+xml"}.get(kind, kind)
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return f'<img src="{source}" alt="{html.escape(alt)}">'


def markdown() -> Any:
    """Return a Markdown parser that leaves formulas to MathJax."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    parser = MarkdownIt("commonmark").enable("table")
    renders = {"math_inline": r"\({}\)", "math_block": r"\[{}\]"}
    parser.use(dollarmath_plugin, renderer=lambda text, given: _formula(text, given, renders))
    return parser


def _formula(text: str, given: dict[str, Any], renders: dict[str, str]) -> str:
    return renders["math_block" if given["display_mode"] else "math_inline"].format(html.escape(text))


def page(text: str, folder: pathlib.Path) -> str:
    """Return a lecture as an HTML page; figures come from the executed notebooks in a folder."""
    parser, slides = markdown(), []
    for part in re.split(r"^---$", text, flags=re.MULTILINE):
        shown, _, notes = part.partition("\nNote:")
        body = parser.render(PICTURE.sub(lambda m: picture(m[2], m[3], m[1], folder), shown.strip()))
        said = f'<aside class="notes">{parser.render(notes.strip())}</aside>' if notes else ""
        slides.append(f"<section>\n{body}{said}</section>")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    return PAGE.format(title=html.escape(title[1] if title else "Slides"), slides="\n".join(slides))


def unpack(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    """Copy what the slides need of reveal.js out of RISE's wheel."""
    with zipfile.ZipFile(wheel) as packed:
        for name in KEPT:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            content = packed.read(REVEAL + CHANGED.get(name, name))
            if name.endswith(".css"):  # the theme asks for web fonts; slides ask for nothing
                content = re.sub(rb"@import url\([^)]*\);", b"", content)
            target.write_bytes(content)


def main(wheel: str) -> None:
    """Write every lecture into ``_build/slides``."""
    pages = {path.stem: page(path.read_text("utf8"), folder_of(ROOT)) for path in HERE.glob("lecture_*.md")}
    shutil.rmtree(OUT, ignore_errors=True)
    unpack(pathlib.Path(wheel), OUT / "reveal")
    shutil.copytree(ROOT / "book" / "_static" / "mathjax", OUT / "mathjax")
    shutil.copy(HERE / "slides.css", OUT)
    for name, text in sorted(pages.items()):
        (OUT / f"{name}.html").write_text(text, "utf8")
        print(f"Open {(OUT / name).as_uri()}.html")


if __name__ == "__main__":
    main(sys.argv[1])
