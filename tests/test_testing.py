"""Checks of an author's class: sound ones pass, and a mistake is named with the type of error it deserves."""

from dataclasses import dataclass

import pytest
import torch

from nclib import label_noise, losses
from nclib.label_noise.base import METHODS as LABEL_METHODS
from nclib.methods import METHODS, Method, Steps, option
from nclib.models import CaptionEncoding, FragmentMatcher, ImageEncoding, Matcher
from nclib.models.registry import MODELS
from nclib.testing import check_method, check_model


@dataclass(frozen=True)
class Tau:
    tau: float = option(0.05, above=0, help="temperature")


def value(loop, batch):
    return losses.info_nce(loop.similarity(batch), 0.05)


class Good(Method):
    Options = Tau

    def warmup_step(self, loop, batch):
        return {"loss": value(loop, batch).mean()}

    def begin_epoch(self, loop):
        return loop.batches(purpose="pairs")

    step = warmup_step


def mine(**members):
    return type("Mine", (Good,), members)


def kept_from(seed):
    """Return a step whose loss depends on a number that a continued run lacks."""

    def step(self, loop, batch):
        self.seen = getattr(self, "seen", seed) + 1
        return {"loss": value(loop, batch).mean() * self.seen}

    return step


@dataclass(frozen=True)
class Raw:
    tau: float = 0.05


@dataclass(frozen=True)
class Wild:
    tau: float = option(0.0, above=0)


@dataclass
class Thawed:
    tau: float = option(0.05)


class Undecorated(Tau):  # its new field would be lost
    margin: float = option(0.2)


@dataclass(frozen=True)
class Twice(Tau):
    epochs: int = option(3, low=1)


class Half(label_noise.DeepMethod):
    Options = Tau


class Third(label_noise.Projector):
    Options = Tau


METHOD_MISTAKES = [  # members of a class, or a class; the error; what it names
    (dict, TypeError, ["DeepMethod", "Projector", "dict"]),
    (type("Empty", (Method,), {"Options": Tau}), TypeError, ["Empty", "begin_epoch", "step", "warmup_step"]),
    (Half, TypeError, ["Half", "step"]),
    (Third, TypeError, ["Third", "fit", "project_images", "project_texts", "load_state"]),
    ({"Options": None}, TypeError, ["Options", "None"]),
    ({"Options": {"tau": 0.05}}, TypeError, ["Options", "tau"]),
    ({"Options": Thawed}, TypeError, ["Options", "Thawed"]),
    ({"Options": Undecorated}, TypeError, ["Options", "Undecorated"]),
    ({"Options": Raw}, TypeError, ["Raw.tau", "0.05", "option("]),
    ({"Options": Wild}, TypeError, ["Wild.tau", "0.0", "above 0"]),
    ({"Options": Twice}, ValueError, ["epochs"]),
    ({"__init__": lambda self: None}, TypeError, ["argument"]),
    ({"begin_epoch": lambda self: None}, TypeError, ["argument"]),
    ({"begin_epoch": lambda self, loop: None}, TypeError, ["not iterable"]),
    ({"begin_epoch": lambda self, loop: iter([])}, ValueError, ["network 0"]),
    ({"end_epoch": 3}, TypeError, ["int"]),
    ({"diagnostics": lambda self, truth: None}, TypeError, ["NoneType"]),
    ({"diagnostics": lambda self, truth: {"auc": torch.tensor(0.5)}}, TypeError, ["'auc'", "Tensor ()"]),
    ({"state": lambda self: {"bank": {"seen": [1, {2}]}}}, TypeError, ["'bank.seen.1'", "set"]),
    ({"step": kept_from(0)}, AssertionError, ["Mine", "curves.3.loss_loss", "state", "load_state"]),
    ({"step": lambda self, loop, batch: value(loop, batch).mean()}, TypeError, ["Tensor ()"]),
    ({"step": lambda self, loop, batch: None}, TypeError, ["NoneType"]),
    ({"step": lambda self, loop, batch: {}}, TypeError, ["dict {}"]),
    ({"step": lambda self, loop, batch: {"loss": 0.5}}, TypeError, ["'loss'", "float"]),
    ({"step": lambda self, loop, batch: {"loss": value(loop, batch)}}, TypeError, ["'loss'", "Tensor (16,)"]),
    ({"step": lambda self, loop, batch: iter([{"loss": 0.5}])}, TypeError, ["'loss'", "float"]),
    (
        {"warmup_step": lambda self, loop, batch: {"loss": value(loop, batch).mean().detach()}},
        TypeError,
        ["'loss'", "without gradient"],
    ),
    *(
        ({"begin_epoch": lambda self, loop, loss=loss: loop.per_pair(loss)}, TypeError, ["per_pair", *named])
        for loss, named in (
            (lambda S: S.diagonal()[1:], ["Tensor (15,)", "(16, ...)"]),
            (lambda S: 1.0, ["float 1.0", "(16, ...)"]),
        )
    ),
]


@pytest.mark.parametrize(("members", "error", "named"), METHOD_MISTAKES)
def test_a_mistake_in_a_method_is_named(members, error, named):
    with pytest.raises(error) as caught:
        check_method(mine(**members) if isinstance(members, dict) else members)
    assert [name for name in named if name not in str(caught.value)] == []
    assert "method_on_trial" not in {*METHODS, *LABEL_METHODS}


class Counted(Good):
    """Draws from the loop and keeps a number; takes other names and more arguments than it must."""

    def __init__(self, chosen, *, more=0):
        super().__init__(chosen)
        self.seen = more

    def step(self, loop, item):
        self.seen += 1
        yield {"loss": value(loop, item).mean() * (1 + torch.rand((), generator=loop.generator("a")))}
        yield {"again": value(loop, item).mean() * self.seen}

    def state(self):
        return {"seen": self.seen}

    def load_state(self, trainer, saved):
        self.seen = saved["seen"]


class Named(label_noise.DeepMethod):
    Options = Tau

    def step(self, loop, batch):
        return {"l2": loop.network.images(batch.images).square().mean()}


def wrapped(wrap):
    return mine(begin_epoch=lambda self, loop: wrap(loop.batches(purpose="pairs")))


GOOD = [Good, Counted, Named, *map(wrapped, (list, iter, lambda items: Steps(iter(items), len(items))))]


@pytest.mark.parametrize("cls", GOOD)
def test_a_sound_method_passes(cls):
    state = torch.get_rng_state()
    check_method(cls)
    assert torch.equal(torch.get_rng_state(), state)


def test_parameters_of_the_trial_can_be_given():
    with pytest.raises(ValueError, match="tau=-1"):
        check_method(Good, tau=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("registry", "name"), [(METHODS, "l2rm"), (METHODS, "linear"), (LABEL_METHODS, "mrl")]
)
def test_methods_of_the_catalogue_pass(registry, name):
    check_method(registry[name].factory)


# ------------------------------------------------------------------------------------------------- models


class Lengths(Matcher):
    """Compares the mean of the features with the length of the caption."""

    score_range = (-torch.inf, 0.0)

    def encode_images(self, images):
        return ImageEncoding(self.check_images(images).mean((1, 2))[:, None])

    def encode_captions(self, tokens):
        return CaptionEncoding(torch.tensor(tokens.lengths)[:, None].float(), tokens.lengths)

    def similarity(self, images, captions, *, logits=False):
        return -(images.vectors - captions.vectors.t()).abs()


class Turned(FragmentMatcher):
    def pair_scores(self, regions, words, mask):
        return torch.einsum("brd,nwd->nb", regions, words)


def padded(self, tokens):
    return CaptionEncoding(torch.full((len(tokens), 1), float(tokens.ids.shape[1])), tokens.lengths)


def deep(self, depth=1, **common):
    Matcher.__init__(self, **common)


MODEL_MISTAKES = [
    (torch.nn.Linear, TypeError, ["Matcher", "Linear"]),
    (FragmentMatcher, TypeError, ["FragmentMatcher", "pair_scores"]),
    (Turned, TypeError, ["Turned.pair_scores", "(2, 1)", "(1, 2)"]),
    (type("Empty", (Matcher,), {}), TypeError, ["Empty", "encode_captions", "encode_images", "similarity"]),
    ({"__init__": deep}, TypeError, ["Mine.__init__", "**common", "option("]),
    ({"__init__": lambda self: None}, TypeError, ["Mine.__init__", "**common"]),
    *(
        ({"score_range": wrong}, AssertionError, ["score_range", repr(wrong)])
        for wrong in (1.0, (1.0,), (1.0, 0.0), ("0", "1"), None, (-0.1, 0.0))
    ),
    ({"similarity": lambda self, v, t: None}, TypeError, ["similarity", "(2, 3)", "NoneType"]),
    (
        {"similarity": lambda self, v, t, **_: (v.vectors - t.vectors.t()).t()},
        TypeError,
        ["(2, 3)", "(3, 2)"],
    ),
    ({"encode_images": lambda self, images: images.mean(1)}, TypeError, ["encode_images", "concat"]),
    ({"encode_captions": lambda self, ids, lengths: None}, TypeError, ["lengths"]),
    (
        {"encode_captions": lambda self, _: CaptionEncoding(torch.zeros(1, 1), (3,))},
        TypeError,
        ["3 rows", "1"],
    ),
    ({"encode_captions": padded}, AssertionError, ["padding", "tokens.lengths"]),
    *(
        (
            {"paired_similarity": lambda self, v, t, n=n, **_: torch.zeros(n)},
            AssertionError,
            ["paired_similarity"],
        )
        for n in ((2,), (2, 2))
    ),
]


@pytest.mark.parametrize(("members", "error", "named"), MODEL_MISTAKES)
def test_a_mistake_in_a_model_is_named(members, error, named):
    cls = type("Mine", (Lengths,), members) if isinstance(members, dict) else members
    with pytest.raises(error) as caught:
        check_model(cls)
    assert [name for name in named if name not in str(caught.value)] == []


def drawn(self, v, t, *, logits=False):
    return -torch.rand(len(v), len(t))


@pytest.mark.parametrize(
    "cls",
    [Lengths, type("Drawn", (Lengths,), {"similarity": drawn}), *(MODELS[name].factory for name in MODELS)],
)
def test_a_sound_model_passes(cls):
    state = torch.get_rng_state()
    check_model(cls, embed_dim=8)
    assert torch.equal(torch.get_rng_state(), state)
