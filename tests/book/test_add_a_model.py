"""The page on adding a model tells the truth: its file, put into a copy of the package, trains there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from code_blocks import blocks, run

import nclib
from nclib.models.base import Matcher
from nclib.models.pairwise import FragmentMatcher

PAGE = Path(__file__).resolve().parents[2] / "book" / "howto" / "model.md"
BLOCKS = blocks(PAGE)

CHECK = """
import pathlib
assert pathlib.Path(nclib.__file__).parent == pathlib.Path.cwd() / "nclib"
model = nclib.models.build("best_region", feature_dim=8, vocab_size=20, embed_dim=6, word_dim=5).eval()
images, ids = torch.randn(3, 4, 8), torch.tensor([[1, 5, 2, 0, 0], [1, 6, 7, 8, 2]])
S = model(images, nclib.models.base.Tokens(ids, (3, 5)))
alone = model(images, nclib.models.base.Tokens(ids[:1, :3], (3,)))
assert torch.allclose(S[:, :1], alone, atol=1e-6) and bool((S.abs() <= 1).all())
v, w = model.encode_images(images), model.encode_captions(nclib.models.base.Tokens(ids, (3, 5)))
cosine = torch.stack([v.regions @ w.words[k, : w.lengths[k]].t() for k in range(2)][1:])[0]  # (3, R, w)
naive = (torch.softmax(cosine / 0.05, 1) * cosine).sum(1).mean(1)
assert torch.allclose(S[:, 1], naive, atol=1e-6)
two = w.select([0, 1])
pairs = model.paired_similarity(v.select([0, 1]), two)
assert torch.allclose(pairs, S[:2].diagonal(), atol=1e-6)
try:
    nclib.models.build("best_region", feature_dim=8, vocab_size=20, softness=-1)
except ValueError as error:
    print(error)
print(record.settings["model_options"])
"""


def test_one_file_and_one_import_are_a_model(tmp_path: Path) -> None:
    shutil.copytree(
        Path(nclib.__file__).parent, tmp_path / "nclib", ignore=shutil.ignore_patterns("__pycache__")
    )
    assert BLOCKS["best-region"].caption == "nclib/models/best_region.py"
    (tmp_path / "nclib" / "models" / "best_region.py").write_text(BLOCKS["best-region"].code, "utf8")
    package = tmp_path / "nclib" / "models" / "__init__.py"
    text = package.read_text("utf8")
    package.write_text(text.replace("\n\n__all__", f"\n{BLOCKS['best-region-import'].code}\n__all__"), "utf8")
    out = run(BLOCKS["run-best-region"].code + CHECK, tmp_path, tmp_path)
    assert "softness" in out.splitlines()[0]
    assert "softness must be a positive number, got -1" in out
    assert "'softness': 0.1" in out


def test_a_cell_of_a_notebook_is_enough(tmp_path: Path) -> None:
    code = BLOCKS["best-region"].code
    script = f"exec(compile({code!r}, 'cell', 'exec'))\n" + BLOCKS["run-best-region"].code
    assert "rSum" in run(script, tmp_path, Path(nclib.__file__).parents[1])


@pytest.mark.parametrize("name", ["similarity", "paired_similarity", "extra_terms", "score_range"])
def test_what_the_page_names_exists(name: str) -> None:
    page = PAGE.read_text("utf8")
    assert f"`{name}`" in page
    assert hasattr(Matcher, name)
    for file in set(re.findall(r"`(nclib/models/\w+\.py)`", page)):
        assert (PAGE.parents[2] / file).exists()
    assert {"_pairs", "_bytes"} <= FragmentMatcher.__abstractmethods__


def test_the_blocks_are_those_that_run() -> None:
    assert list(BLOCKS) == ["best-region", "best-region-import", "run-best-region"]
    assert {b.language for b in BLOCKS.values()} == {"python"}
