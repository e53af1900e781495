"""An author's own model: declared options, and mistakes told in one line, at registration or when built."""

import re
from typing import Any

import pytest
import torch

import nclib
from nclib import models
from nclib.common.options import rules
from nclib.models import (
    CaptionEncoding,
    CosineMatcher,
    FragmentMatcher,
    ImageEncoding,
    Matcher,
    Tokens,
    option,
)
from nclib.models.registry import MODELS

SIZES = {"feature_dim": 5, "vocab_size": 9, "n_regions": 3, "embed_dim": 4, "word_dim": 3}


class Good(Matcher):
    """Compares the mean of the features with the length of the caption."""

    weight: float = option(1.0, above=0, help="factor of the difference")
    kind: str = option("abs", choices=("abs", "square"))

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.offset = torch.nn.Parameter(torch.zeros(()))

    def encode_images(self, images):
        return ImageEncoding(self.check_images(images).mean((1, 2))[:, None])

    def encode_captions(self, tokens):
        lengths = self.check_tokens(tokens).lengths
        return CaptionEncoding(torch.tensor(lengths)[:, None].float(), lengths)

    def similarity(self, images, captions, *, logits=False, chunk=None):
        return -self.weight * (images.vectors - captions.vectors.t() + self.offset).abs()


@pytest.fixture(autouse=True)
def registry():
    """Take out what a test registered."""
    before = set(MODELS)
    yield
    for name in set(MODELS) - before:
        MODELS.remove(name)


def refused(cls):
    with pytest.raises(TypeError) as caught:
        models.register("mine", summary="for a test")(cls)
    assert "mine" not in models.available()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(**members):
    """``Good`` with other members; None takes one out."""
    kept = {k: v for k, v in {**vars(Good), **members}.items() if v is not None and not k.startswith("_abc")}
    return type("Mine", (Matcher,), kept)


def test_declared_options_and_sizes_are_options():
    models.register("mine", summary="for a test", paper="None et al.")(Good)
    assert models.available()["mine"] == "for a test (None et al.)"
    assert list(rules(models.options("mine"))) == [*rules(Matcher.Options), "weight", "kind"]
    model = models.build("mine", **SIZES, weight=2)
    assert (model.weight, model.kind, model.embed_dim, Good.weight) == (2.0, "abs", 4, 1.0)
    assert isinstance(model.weight, float)
    for options, message in (
        ({"weight": 0}, "weight=0: must be a number, above 0"),
        ({"weight": True}, "weight=True: must be a number"),
        ({"kind": "cube"}, "kind='cube': must be one of 'abs', 'square'"),
        ({"weigth": 1}, "unknown parameter 'weigth'; did you mean 'weight'?"),
        ({"embed_dim": 0}, "embed_dim=0: must be a whole number, at least 1"),
    ):
        with pytest.raises(ValueError, match=f"^bad parameters: {re.escape(message)}"):
            models.build("mine", **SIZES | options)
    with pytest.raises(ValueError, match="vocab_size is needed: number of token ids"):
        Good(feature_dim=3)


def test_a_subclass_has_its_own_defaults():
    class Heavy(Good):
        weight: float = option(3.0, above=1)

    assert (Heavy(**SIZES).weight, Good(**SIZES).weight) == (3.0, 1.0)
    with pytest.raises(ValueError, match="weight=1: must be a number, above 1"):
        Heavy(**SIZES, weight=1)
    models.register("mine", summary="for a test")(Heavy)
    assert models.options("mine").catalogue()["weight"] == "3.0"


def test_the_option_none_is_kept():
    class Maybe(Good):
        rate: float = option(None, kind=float, low=0, below=1)

    assert Maybe(**SIZES).rate is None
    assert Maybe(**SIZES, rate=0.5).rate == 0.5
    with pytest.raises(ValueError, match="rate=1: must be None or a number, at least 0 and below 1"):
        Maybe(**SIZES, rate=1)


def test_not_a_model():
    said = "model 'mine': register decorates a subclass of Matcher or FragmentMatcher, got <class 'torch"
    assert refused(torch.nn.Linear).startswith(said)
    assert "register decorates a subclass of" in refused(lambda **sizes: None)


@pytest.mark.parametrize("lacking", ["encode_images", "encode_captions", "similarity"])
def test_a_missing_method_is_named(lacking):
    assert refused(changed(**{lacking: None})) == f"model 'mine': class Mine lacks {lacking}"


@pytest.mark.parametrize("wrong", [1.0, (1.0,), (1.0, 0.0), ("0", "1"), None])
def test_a_score_range_is_two_rising_numbers(wrong):
    said = f"score_range={wrong!r}: must be two numbers, the smallest and the largest similarity"
    kept = {k: v for k, v in vars(Good).items() if not k.startswith("_abc")}
    assert refused(type("Mine", (Matcher,), {**kept, "score_range": wrong})) == f"model 'mine': {said}"

    class Late(Good):
        def __init__(self, **common: Any) -> None:
            super().__init__(**common)
            self.score_range = wrong

    models.register("mine", summary="for a test")(Late)
    with pytest.raises(TypeError, match="must be two numbers"):
        models.build("mine", **SIZES)


def test_a_missing_score_of_fragments_is_named():
    assert refused(type("Mine", (FragmentMatcher,), {})) == "model 'mine': class Mine lacks pair_scores"


@pytest.mark.parametrize(
    "init",
    [
        lambda self, depth=1, **common: None,
        lambda self, *, depth=1, **common: None,
        lambda self, *, feature_dim=1: None,
        lambda self: None,
    ],
)
def test_a_constructor_with_keywords_of_its_own(init):
    assert refused(changed(__init__=init)) == (
        "model 'mine': Mine.__init__ must take **common and pass it on to super().__init__(**common); "
        "options are declared in the class: name: int = option(default)"
    )


def test_a_name_can_be_taken_once():
    with pytest.raises(ValueError, match="model 'vse' is registered twice"):
        models.register("vse", summary="for a test")(Good)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"similarity": lambda self, v, t, **_: (v.vectors - t.vectors.t()).t()},
            r"similarity must be \(images, captions\), \(2, 3\) for 2 images and 3 captions, got \(3, 2\)",
        ),
        ({"similarity": lambda self, v, t, **_: 0.0}, r"similarity must be .*, got float"),
        (
            {"encode_images": lambda self, images: images.mean(1)},
            "encode_images must return an encoding such as ImageEncoding .*, got Tensor without concat",
        ),
        (
            {"encode_captions": lambda self, tokens: CaptionEncoding(torch.zeros(1, 1), (3,))},
            "encode_captions must return .* of 3 rows for 3, got 1",
        ),
    ],
)
def test_what_methods_return_is_tried_when_the_model_is_built(members, message):
    models.register("mine", summary="for a test")(changed(**members, __init__=None))
    state = torch.get_rng_state()
    with pytest.raises(TypeError, match=f"model 'mine': {message}"):
        models.build("mine", **SIZES)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"score_range": (-0.1, 0.0)},
            r"similarity gave scores from -\d.* to -\d.* on random data, outside score_range=\(-0\.1, 0\.0\)",
        ),
        (
            {
                "encode_captions": lambda self, tokens: CaptionEncoding(
                    torch.full((len(tokens), 1), float(tokens.ids.shape[1])), tokens.lengths
                )
            },
            r"a caption scores -3\.\d* beside a longer one and -2\.\d* alone; padding beyond tokens\.lengths",
        ),
        (
            {"paired_similarity": lambda self, v, t, *, logits=False: torch.zeros(2)},
            r"paired_similarity must be the diagonal of similarity, \[-.*\] \(2,\) for 2 pairs, got \[0\.0",
        ),
        (
            {"paired_similarity": lambda self, v, t, *, logits=False: torch.zeros(2, 2)},
            r"paired_similarity must be the diagonal of similarity, .* got .* \(2, 2\)",
        ),
    ],
)
def test_scores_are_tried_when_the_model_is_built(members, message):
    models.register("mine", summary="for a test")(changed(**members, __init__=minimal))
    state = torch.get_rng_state()
    with pytest.raises(TypeError, match=f"^model 'mine': {message}"):
        models.build("mine", **SIZES)
    assert torch.equal(torch.get_rng_state(), state)


def minimal(self, **common: Any) -> None:
    Matcher.__init__(self, **common)
    self.offset = 0.0


def test_the_trial_leaves_modes_and_random_numbers_as_they_were():
    class Frozen(Good):
        draws_in_training = True

        def __init__(self, **common: Any) -> None:
            super().__init__(**common)
            self.backbone = torch.nn.Dropout(0.5).eval()
            self.head = torch.nn.Dropout(0.5)

        def encode_images(self, images):
            vectors = super().encode_images(self.head(self.backbone(images))).vectors
            return ImageEncoding(vectors + torch.randn_like(vectors) if self.training else vectors)

    models.register("mine", summary="for a test")(Frozen)
    state = torch.get_rng_state()
    model = models.build("mine", **SIZES)
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.training, model.backbone.training, model.head.training) == (True, False, True)


def test_scores_that_are_drawn_are_not_compared():
    models.register("mine", summary="for a test")(
        changed(similarity=lambda self, v, t, *, logits=False: torch.randn(len(v), len(t)), __init__=minimal)
    )
    models.build("mine", **SIZES)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"similarity": lambda self, images, captions: None},
            "similarity takes (self, images, captions); "
            "write def similarity(self, images, captions, *, logits=False, chunk=None)",
        ),
        (
            {"encode_captions": lambda self, ids, lengths: None},
            "encode_captions takes (self, ids, lengths); write def encode_captions(self, tokens)",
        ),
    ],
)
def test_a_method_that_does_not_take_what_it_is_called_with(members, message):
    assert refused(changed(**members)) == f"model 'mine': Mine.{message}"


class Words(FragmentMatcher):
    """Mean over words of the best region's cosine."""

    def pair_scores(self, regions, words, mask):
        cosine = torch.einsum("brd,nwd->bnwr", regions, words).exp()
        return (cosine.amax(-1) * mask).sum(-1) / mask.sum(-1)


def test_memory_of_training_is_measured():
    model = Words(**SIZES)
    regions = torch.randn(6, 3, 4)
    per_word, per_caption = model.training_bytes(regions)
    one = 6 * 3 * 4  # bytes of a word's cosines with all regions, in float32: of those, exp and amax keep one
    assert one <= per_word <= 3 * one
    assert 0 <= per_caption <= 20 * one
    doubled, _ = model.training_bytes(torch.cat([regions, regions]))
    assert doubled == pytest.approx(2 * per_word, rel=0.2)


def test_the_measured_memory_bounds_a_group(monkeypatch):
    torch.manual_seed(0)
    model = Words(**SIZES)
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
    class Wrong(Words):
        def pair_scores(self, regions, words, mask):
            return super().pair_scores(regions, words, mask).t()

    models.register("mine", summary="for a test")(Wrong)
    with pytest.raises(
        TypeError, match=r"Wrong\.pair_scores must be \(images, captions\), \(2, 1\), got \(1, 2\)"
    ):
        models.build("mine", **SIZES)


def test_one_vector_each_needs_two_methods_only(tmp_path):
    class Mean(CosineMatcher):
        def encode_images(self, images):
            return ImageEncoding(models.l2(self.encode_regions(images).mean(1)))

        def encode_captions(self, tokens):
            _, last = self.encode_words(tokens)
            return CaptionEncoding(models.l2(last), tokens.lengths)

    models.register("mine", summary="for a test")(Mean)
    record = nclib.run(
        "plain",
        model="mine",
        dataset="planted",
        mrate=0.0,
        warmup_epochs=0,
        epochs=2,
        data_options={"n_train": 128, "n_val": 20, "n_test": 20},
        model_options={"embed_dim": 32, "dropout": 0.1},
        batch_size=16,
        out=str(tmp_path),
        progress=False,
    )
    chance = 100 * (1 + 5 + 10) * 2 / 20
    assert record.metrics["test"]["rsum"] > 1.5 * chance


def test_an_unknown_model_is_told_to_be_imported():
    with pytest.raises(ValueError, match=r"model='mine': must be one of .*import the file that registers"):
        nclib.run("plain", model="mine", dataset="planted", progress=False)
