"""Drawn ideas: files that can be edited, with the page's colours and a description."""

import re
from xml.etree import ElementTree

import nbformat
import ncbook
import pytest
from ncbook.ideas import IDEAS

NOTEBOOKS = IDEAS.parents[2] / "notebooks"
COLOUR = re.compile(r"(?:fill|stroke):(?!none|var\(--nc-\w+, (?:#[0-9a-f]{6}|currentColor)\))")


@pytest.mark.parametrize("path", sorted(IDEAS.glob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_has_the_pages_colours_and_a_description(path):
    text = path.read_text("utf8")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert len(root.get("aria-label")) > 20
    assert not COLOUR.search(text)
    used = set(re.findall(r"url\(#([\w-]+)\)", text))
    assert used <= {part.get("id") for part in root.iter()}


def test_every_drawing_is_shown_once():
    shown = []
    for path in NOTEBOOKS.glob("*.ipynb"):
        for cell in nbformat.read(path, 4).cells:
            if drawn := re.search(r'^ncbook\.idea\("([\w-]+)", panels\)$', cell.source, re.MULTILINE):
                panels, last = cell.source.rsplit("\n", 1)
                exec(panels, known := {"ncbook": ncbook})
                found = eval(last, known)
                shown += [drawn[1]] * len(found.drawings)
                assert found._repr_html_().count("<section>") == len(found.panels)
    names = [path.stem[:-2] for path in IDEAS.glob("*.svg")]
    assert sorted(shown) == sorted(names)


def test_panels_without_drawings_are_refused():
    with pytest.raises(ValueError, match="'l2rm' has 4 drawings for 1 panels; there are drawings of bicro, "):
        ncbook.idea("l2rm", {"Title": "Words."})


def test_words_are_text():
    said = ncbook.idea("l2rm", {f"a < {b}": "c & d" for b in "wxyz"})._repr_mimebundle_()
    assert "<strong>1 · a &lt; w</strong>" in said["text/html"]
    assert said["text/plain"].startswith("1. a < w: c & d\n2. ")
