"""Means with a spread agree between the README, the pages, the notebooks' prose and the stored outputs."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MEAN = re.compile(r"\d+(?:\.\d+)? ± \d+(?:\.\d+)?")  # as ncbook.mean_text writes it, without its seeds


def cells(folder: Path, kind: str) -> Iterator[tuple[Path, dict]]:
    for path in sorted(folder.glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf8"))["cells"]:
            if cell["cell_type"] == kind:
                yield path, cell


def prose() -> Iterator[tuple[Path, str]]:
    for path in (ROOT / "README.md", *sorted((ROOT / "book").rglob("*.md"))):
        yield path, path.read_text("utf8")
    for path, cell in cells(ROOT / "notebooks", "markdown"):
        yield path, "".join(cell["source"])


def printed() -> set[str]:
    """Return every mean with a spread in the stored outputs."""
    found: set[str] = set()
    for _, cell in cells(ROOT / "book" / "executed", "code"):
        for output in cell["outputs"]:
            for value in (*output.get("data", {}).values(), output.get("text", "")):
                text = "".join(value) if isinstance(value, list) else str(value)
                found.update(MEAN.findall(html.unescape(text)))
    return found


def test_every_mean_in_prose_is_one_that_a_notebook_prints() -> None:
    measured = printed()
    assert len(measured) > 500
    said = [(path.name, mean) for path, text in prose() for mean in MEAN.findall(text)]
    assert len(said) > 25
    assert [(name, mean) for name, mean in said if mean not in measured] == []
