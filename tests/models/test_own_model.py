"""An author's own model: declared options, the memory of its comparison, and two methods that suffice."""

from typing import Any

import pytest
import torch
from refusals import refused

import nclib
from nclib import models
from nclib.common.options import rules
from nclib.models import CaptionEncoding, CosineMatcher, FragmentMatcher, ImageEncoding, Tokens, option
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


class Mean(CosineMatcher):
    """One vector each."""

    def encode_images(self, images):
        return ImageEncoding(models.l2(self.encode_regions(images).mean(1)))

    def encode_captions(self, tokens):
        _, last = self.encode_words(tokens)
        return CaptionEncoding(models.l2(last), tokens.lengths)


@pytest.fixture
def mine(request):
    """The model ``mine`` in the catalogue."""
    models.register("mine", summary="for a test")(request.param)
    yield request.param
    MODELS.remove("mine")


@pytest.mark.parametrize("mine", [Weighed], indirect=True)
def test_declared_options_and_sizes_are_options(mine):
    assert list(rules(models.options("mine"))) == [*rules(FragmentMatcher.Options), "weight", "kind", "rate"]
    model = models.build("mine", **SIZES, weight=2, rate=0.5)
    assert (model.weight, model.kind, model.rate, model.embed_dim) == (2.0, "abs", 0.5, 4)
    assert isinstance(model.weight, float)
    assert (Heavy(**SIZES).weight, Weighed(**SIZES).weight, Weighed(**SIZES).rate) == (3.0, 1.0, None)


@pytest.mark.parametrize(
    ("cls", "options", "named"),
    [
        (Weighed, {"weight": 0}, ["weight=0", "above 0"]),
        (Weighed, {"weight": True}, ["weight=True", "number"]),
        (Weighed, {"kind": "cube"}, ["kind='cube'", "'abs', 'square'"]),
        (Weighed, {"weigth": 1}, ["'weigth'", "'weight'"]),
        (Weighed, {"embed_dim": 0}, ["embed_dim=0", "at least 1"]),
        (Weighed, {"rate": 1}, ["rate=1", "None", "below 1"]),
        (Heavy, {"weight": 1}, ["weight=1", "above 1"]),
    ],
)
def test_an_option_that_is_not_allowed(cls, options, named):
    refused(ValueError, lambda: cls(**SIZES | options), *named)


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


def test_a_wrong_shape_of_fragment_scores_is_named():
    class Wrong(Weighed):
        def pair_scores(self, regions, words, mask):
            return super().pair_scores(regions, words, mask).t()

    refused(TypeError, lambda: nclib.testing.check_model(Wrong), "Wrong.pair_scores", "(2, 1)", "(1, 2)")


@pytest.mark.parametrize("mine", [Mean], indirect=True)
def test_one_vector_each_needs_two_methods_only(mine, tmp_path):
    given: dict[str, Any] = {
        "data_options": {"n_train": 128, "n_val": 20, "n_test": 20},
        "model_options": {"embed_dim": 32, "dropout": 0.1},
        **{"dataset": "planted", "mrate": 0.0, "warmup_epochs": 0, "epochs": 2, "batch_size": 16},
    }
    record = nclib.run("plain", model="mine", **given, out=str(tmp_path), progress=False)
    chance = 100 * (1 + 5 + 10) * 2 / 20
    assert record.metrics["test"]["rsum"] > 1.5 * chance


def test_an_unknown_model_is_told_to_be_imported():
    with pytest.raises(ValueError, match=r"model='mine': must be one of .*import the file that registers"):
        nclib.run("plain", model="mine", dataset="planted", progress=False)
