"""An author's own model: declared options, the memory of its comparison, and two methods that suffice."""

import pytest
import torch
from refusals import refused

import nclib
from nclib import models
from nclib.common.options import rules
from nclib.models import FragmentMatcher, Tokens, option
from nclib.models.registry import MODELS

SIZES = {"feature_dim": 5, "vocab_size": 9, "n_regions": 3, "embed_dim": 4, "word_dim": 3}


class Weighed(FragmentMatcher):
    """Mean over words of the best region's cosine, weighed."""

    weight: float = option(1.0, above=0, help="factor of the score")
    kind: str = option("abs", choices=("abs", "square"))
    rate: float = option(None, kind=float, low=0, below=1)

    def pair_scores(self, regions, words, mask):
        cosine = torch.einsum("brd,nwd->bnwr", regions, words).exp()
        return self.weight * (cosine.amax(-1) * mask).sum(-1) / mask.sum(-1)


class Heavy(Weighed):
    """Has a default of its own."""

    weight: float = option(3.0, above=1)


def test_declared_options_and_sizes_are_options():
    models.register("mine", summary="for a test")(Weighed)
    assert list(rules(models.options("mine"))) == [*rules(FragmentMatcher.Options), "weight", "kind", "rate"]
    model = models.build("mine", **SIZES, weight=2, rate=0.5)
    MODELS.remove("mine")
    assert (model.weight, model.kind, model.rate, model.embed_dim) == (2.0, "abs", 0.5, 4)
    assert isinstance(model.weight, float)
    assert (Heavy(**SIZES).weight, Weighed(**SIZES).weight, Weighed(**SIZES).rate) == (3.0, 1.0, None)
    for cls, options, *named in (
        (Weighed, {"weight": 0}, "weight=0", "above 0"),
        (Weighed, {"weigth": 1}, "'weigth'", "'weight'"),
        (Weighed, {"embed_dim": 0}, "embed_dim=0", "at least 1"),
        (Heavy, {"weight": 1}, "weight=1", "above 1"),
    ):
        refused(ValueError, lambda cls=cls, options=options: cls(**SIZES | options), *named)
    unknown = lambda: nclib.run("plain", model="mine", dataset="planted", progress=False)  # noqa: E731
    refused(ValueError, unknown, "model='mine'", "import the file that registers")


def test_memory_of_training_is_measured():
    model = Weighed(**SIZES)
    regions = torch.randn(6, 3, 4)
    per_word, per_caption = model.training_bytes(regions)
    one = 6 * 3 * 4  # bytes of a word's cosines with all regions, in float32: of those, exp and amax keep one
    assert one <= per_word <= 3 * one
    assert 0 <= per_caption <= 20 * one
    doubled, _ = model.training_bytes(torch.cat([regions, regions]))
    assert doubled == pytest.approx(2 * per_word, rel=0.2)


def test_the_measured_memory_bounds_a_group(monkeypatch):
    torch.manual_seed(0)
    model = Weighed(**SIZES)
    images = model.encode_images(torch.randn(6, 3, 5))
    tokens = Tokens(torch.randint(1, 9, (20, 7)), tuple(2 + i % 6 for i in range(20)))
    captions = model.encode_captions(tokens)
    whole = model.similarity(images, captions)
    per_word, _ = model.training_bytes(images.regions)
    widths, score = [], model.pair_scores
    monkeypatch.setattr(
        model, "pair_scores", lambda r, w, m: widths.append(w.shape[:2].numel()) or score(r, w, m)
    )
    model.memory_budget = 12 * per_word
    parts = model.similarity(images, captions)
    torch.testing.assert_close(parts, whole)
    assert len(widths) > 5
    assert max(widths) <= 12
