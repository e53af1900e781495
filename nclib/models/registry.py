"""The registry of models, and what it asks of an author's class."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from nclib.common.registry import Entry, Registry, class_mistake
from nclib.common.tokens import Tokens
from nclib.models.base import Matcher
from nclib.models.region_words import FragmentMatcher
from nclib.models.scoring import evaluating

# What loops, methods and the bases call on a model.
CALLED = ("encode_images", "encode_captions", "similarity", "paired_similarity", "pair_scores", "own_loss")


def _check(cls: Any) -> str:
    """Return what keeps a class from being built and used as a model, in one line; empty if nothing does."""
    if wrong := class_mistake(cls, Matcher, FragmentMatcher, called=CALLED.__contains__):
        return wrong
    taken = inspect.signature(cls).parameters.values()
    if [p.kind for p in taken] != [inspect.Parameter.VAR_KEYWORD]:
        return (
            f"{cls.__name__}.__init__ must take **common and pass it on to super().__init__(**common); "
            "options are declared in the class: name: int = option(default)"
        )
    return _range_mistake(cls)


def _range_mistake(model: Any) -> str:
    """Return what is wrong with the ``score_range`` of a class or model, in one line; empty if nothing is."""
    found = model.score_range
    pair = isinstance(found, (tuple, list)) and len(found) == 2
    if isinstance(found, property) or (
        pair and all(isinstance(x, (int, float)) for x in found) and found[0] < found[1]
    ):
        return ""
    return f"score_range={found!r}: must be two numbers, the smallest and the largest similarity"


def _construct(entry: Entry[type[Matcher]], values: dict[str, Any]) -> Matcher:
    """Build a model; one from outside this package is tried on random data, see :func:`_trial_mistake`."""
    model = entry.factory(**values)
    if not entry.factory.__module__.startswith("nclib.") and model.device.type != "meta":
        with torch.random.fork_rng(devices=[]), evaluating(model):
            wrong = _trial_mistake(model)
        if wrong:
            raise TypeError(f"model {entry.name!r}: {wrong}")
    return model


def _trial_mistake(model: Matcher) -> str:
    """Encode and compare two images and three captions; return what is wrong in one line, or ''.

    Looked at are types and shapes, and whether the scores are as every model's must be.
    """
    if wrong := _range_mistake(model):  # set by its constructor
        return wrong
    images = model.encode_images(torch.rand(2, model.n_regions, model.feature_dim))
    last = model.vocab_size - 1
    tokens = Tokens(torch.tensor([[0, last, 0, 0], [0, 0, 0, last], [last, 0, 0, 0]]), (3, 4, 3))
    captions = model.encode_captions(tokens)
    for method, encoding, n in (("encode_images", images, 2), ("encode_captions", captions, 3)):
        lacking = [part for part in ("__len__", "select", "detach", "concat") if not hasattr(encoding, part)]
        if lacking or len(encoding) != n:
            got = f"{type(encoding).__name__} without {', '.join(lacking)}" if lacking else len(encoding)
            return (
                f"{method} must return an encoding such as ImageEncoding or CaptionEncoding of {n} rows for "
                f"{n}, got {got}"
            )
    scores = model.similarity(images, captions)
    found = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if found != (2, 3):
        return f"similarity must be (images, captions), (2, 3) for 2 images and 3 captions, got {found}"
    owners = [model, *(c for c in type(model).__mro__ if c is not Matcher)]
    if any("score_range" in vars(owner) for owner in owners):
        low, high = model.score_range
        slack = _slack(torch.tensor([x for x in (low, high) if math.isfinite(x)] or [1.0]), scores)
        least, most = (float(x) for x in torch.aminmax(scores))
        if not (low - slack <= least and most <= high + slack):
            return (
                f"similarity gave scores from {least:.4g} to {most:.4g} on random data, outside "
                f"score_range={model.score_range!r}"
            )
    if not torch.equal(model.similarity(images, captions), scores):
        return ""  # scores that are drawn cannot be compared
    first = model.encode_captions(Tokens(tokens.ids[:1, : tokens.lengths[0]], tokens.lengths[:1]))
    if not _near(alone := model.similarity(images, first), scores[:, :1]):
        return (
            f"a caption scores {float(scores[0, 0]):.6g} beside a longer one and {float(alone[0, 0]):.6g} "
            "alone; padding beyond tokens.lengths must count nothing"
        )
    pairs, diagonal = model.paired_similarity(images, captions.select([0, 1])), scores[:, :2].diagonal()
    if tuple(pairs.shape) != (2,) or not _near(pairs, diagonal):
        return (
            f"paired_similarity must be the diagonal of similarity, {_short(diagonal)} for 2 pairs, got "
            f"{_short(pairs)}"
        )
    return ""


def _slack(*scores: Tensor) -> float:
    """Return the rounding that is allowed in scores."""
    rounding = max(torch.finfo(x.dtype).eps ** 0.5 if x.is_floating_point() else 0.0 for x in scores)
    return 3 * rounding * max(0.01, *(float(x.abs().amax().nan_to_num(posinf=1.0)) for x in scores))


def _near(a: Tensor, b: Tensor) -> bool:
    """Return whether scores agree but for rounding."""
    return torch.allclose(a.double(), b.double(), rtol=0, atol=_slack(a, b), equal_nan=True)


def _short(scores: Tensor) -> str:
    """Return a few scores as text."""
    return str([round(x, 4) for x in scores.double().flatten()[:4].tolist()]) + f" {tuple(scores.shape)}"


MODELS: Registry[type[Matcher]] = Registry("model", _check, _construct)
register = MODELS.register
