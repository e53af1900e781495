"""Checks of a method or a model of one's own, before it is trained in earnest.

:func:`check_method` and :func:`check_model` raise an error that names what a class lacks or does otherwise
than the loops rely on, and return nothing for a sound one. No run calls them.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nclib.common.method import TrainingMethod
from nclib.common.tokens import Tokens
from nclib.label_noise.base import METHODS as LABEL_METHODS
from nclib.methods.base import METHODS, ClosedForm, Method
from nclib.models import Matcher
from nclib.models.scoring import evaluating
from nclib.runs import Record, run
from nclib.runs.tables import numbers

__all__ = ["check_method", "check_model"]

TRIAL = "method_on_trial"  # its name among the methods meanwhile
PAIRS: dict[str, Any] = {
    "dataset": "planted",
    "mrate": 0.4,
    "data_options": {"n_train": 40, "n_val": 16, "n_test": 16},
}
TRAINED: dict[str, Any] = {
    "model": "vse",
    "batch_size": 16,
    "warmup_epochs": 1,
    "epochs": 2,
    "model_options": {"embed_dim": 16, "word_dim": 8},
}
LABELS: dict[str, Any] = {
    "dataset": "planted_category",
    "noise_rate": 0.4,
    "data_options": {"n_train": 90, "n_val": 30, "n_test": 40, "image_dim": 16, "text_dim": 16},
    **{"batch_size": 32, "epochs": 3, "hidden": 16, "dim": 16},
}
SIZES = {"feature_dim": 5, "vocab_size": 9, "n_regions": 3, "embed_dim": 4, "sim_dim": 4, "word_dim": 3}


def check_method(cls: type[TrainingMethod], **parameters: Any) -> None:
    """Check a training method: its options, what it returns, and that it resumes exactly.

    The method is trained on a few synthetic pairs, in a folder that is removed afterwards: once without a
    stop, and once stopped after every epoch and continued.

    Parameters
    ----------
    cls : type
        A subclass of :class:`nclib.methods.Method`, :class:`nclib.label_noise.DeepMethod` or
        :class:`nclib.label_noise.Projector`; registered or not.
    **parameters
        Of :func:`nclib.run`, in place of those of the trial; options of the method among them.

    Raises
    ------
    TypeError
        For another class, options that are not declared as they must be, a missing method or argument, a step
        without named scalar terms, and diagnostics or a state that are not plain.
    AssertionError
        When the continued run ends with other numbers.
    ValueError
        As :func:`nclib.run`.

    Examples
    --------
    >>> from nclib.methods.plain import Plain
    >>> check_method(Plain, tau=0.1)
    """
    pairs = isinstance(cls, type) and issubclass(cls, Method)
    registry = METHODS if pairs else LABEL_METHODS
    usual = {**PAIRS, **({} if pairs and issubclass(cls, ClosedForm) else TRAINED)} if pairs else LABELS
    registry.register(TRIAL, summary="on trial")(cls)
    try:
        _check_options(cls)
        with tempfile.TemporaryDirectory() as folder:
            given = {**usual, **parameters, "progress": False}
            whole = run(TRIAL, **given, out=Path(folder, "whole"))
            parts = _stopped_and_continued({**given, "out": Path(folder, "parts")})
            there, again = (numbers(one.content(), one.curves) for one in (whole, parts))
    finally:
        registry.remove(TRIAL)
    if other := [f"{k} is {again.get(k)}, not {v}" for k, v in there.items() if again.get(k) != v]:
        raise AssertionError(
            f"{cls.__name__} stopped and continued: {other[0]}. What outlives an epoch must be returned by "
            "state and restored by load_state; draw random numbers from loop.generator"
        )


class _Stop(Exception):
    """The end of an epoch at which a trial stops."""


def _stopped_and_continued(given: dict[str, Any]) -> Record:
    def stop(values: dict[str, float], epoch: int) -> None:
        raise _Stop

    while True:
        try:
            return run(TRIAL, **given, tracker=stop)
        except _Stop:
            pass


def _check_options(cls: type[TrainingMethod]) -> None:
    """Raise a TypeError unless the options are a frozen dataclass of :func:`option` fields that fit."""
    options: Any = getattr(cls, "Options", None)
    made = vars(options).get("__dataclass_params__") if isinstance(options, type) else None
    if made is None or not made.frozen:
        raise TypeError(
            f"{cls.__name__}.Options must be a class with @dataclass(frozen=True), got {options!r}"
        )
    for field in dataclasses.fields(options):
        rule = field.metadata.get("rule")
        if rule is None or not rule.accepts(field.default):
            must = rule.describe() if rule else "must be declared by option(default, help=...)"
            raise TypeError(f"{options.__name__}.{field.name}, default {field.default!r}: {must}")


def check_model(cls: type[Matcher], **options: Any) -> None:
    """Check a model: what its methods return for random images and captions, and how its scores compare.

    Parameters
    ----------
    cls : type
        A subclass of :class:`nclib.models.Matcher`, registered or not.
    **options
        Of the model, sizes among them, in place of those of the trial.

    Raises
    ------
    TypeError
        For another class, a constructor with keywords of its own, a missing method or argument, and encodings
        or scores of the wrong type or shape.
    AssertionError
        For a ``score_range`` that is not two rising numbers or that scores leave, a caption that scores
        otherwise beside a longer one, and a ``paired_similarity`` that is not the diagonal.
    ValueError
        For an option that is not allowed.

    Examples
    --------
    >>> from nclib.models import build
    >>> check_model(type(build("vse", feature_dim=4, vocab_size=9)), embed_dim=8)
    """
    if not (isinstance(cls, type) and issubclass(cls, Matcher)):
        raise TypeError(f"must be a subclass of Matcher, got {cls!r}")
    taken = inspect.signature(cls).parameters.values()
    if [p.kind for p in taken] != [inspect.Parameter.VAR_KEYWORD]:
        raise TypeError(
            f"{cls.__name__}.__init__ must take **common and pass it on to super().__init__(**common); "
            "options are declared in the class: name: int = option(default)"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cls(**{**SIZES, **options})
        with evaluating(model):
            _check_scores(model)


def _check_scores(model: Matcher) -> None:
    """Encode and compare two images and three captions, the shortest also alone."""
    images = model.encode_images(torch.rand(2, model.n_regions, model.feature_dim))
    last = model.vocab_size - 1
    tokens = Tokens(torch.tensor([[0, last, 0, 0], [0, 0, 0, last], [last, 0, 0, 0]]), (3, 4, 3))
    captions = model.encode_captions(tokens)
    for method, encoding, n in (("encode_images", images, 2), ("encode_captions", captions, 3)):
        lacking = [part for part in ("__len__", "select", "detach", "concat") if not hasattr(encoding, part)]
        if lacking or len(encoding) != n:
            got = f"{type(encoding).__name__} without {', '.join(lacking)}" if lacking else len(encoding)
            raise TypeError(
                f"{method} must return an encoding such as ImageEncoding or CaptionEncoding of {n} rows for "
                f"{n}, got {got}"
            )
    scores = model.similarity(images, captions)
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if shape != (2, 3):
        raise TypeError(
            f"similarity must be (images, captions), (2, 3) for 2 images and 3 captions, got {shape}"
        )
    _check_range(model.score_range, scores)
    if not torch.equal(model.similarity(images, captions), scores):
        return  # scores that are drawn cannot be compared
    alone = model.similarity(images, model.encode_captions(Tokens(tokens.ids[:1, :3], (3,))))
    if not _near(alone, scores[:, :1]):
        raise AssertionError(
            f"similarity of a caption is {float(scores[0, 0]):.6g} beside a longer one and "
            f"{float(alone[0, 0]):.6g} alone; padding beyond tokens.lengths must count nothing"
        )
    pairs, diagonal = model.paired_similarity(images, captions.select([0, 1])), scores[:, :2].diagonal()
    if pairs.shape != diagonal.shape or not _near(pairs, diagonal):
        raise AssertionError(
            f"paired_similarity must be the diagonal of similarity, {diagonal.tolist()} for 2 pairs, got "
            f"{pairs.tolist()}"
        )


def _check_range(limits: Any, scores: Tensor) -> None:
    pair = isinstance(limits, (tuple, list)) and len(limits) == 2
    if not (pair and all(isinstance(x, (int, float)) for x in limits) and limits[0] < limits[1]):
        raise AssertionError(
            f"score_range={limits!r}: must be two numbers, the smallest and the largest similarity"
        )
    slack = _slack(torch.tensor([x for x in limits if math.isfinite(x)] or [1.0]), scores)
    least, most = (float(x) for x in torch.aminmax(scores))
    if not (limits[0] - slack <= least and most <= limits[1] + slack):
        raise AssertionError(
            f"similarity gave scores from {least:.4g} to {most:.4g}, outside score_range={limits!r}"
        )


def _slack(*scores: Tensor) -> float:
    """Return the rounding that is allowed in scores."""
    rounding = max(torch.finfo(x.dtype).eps ** 0.5 if x.is_floating_point() else 0.0 for x in scores)
    return 3 * rounding * max(0.01, *(float(x.abs().amax().nan_to_num(posinf=1.0)) for x in scores))


def _near(a: Tensor, b: Tensor) -> bool:
    """Return whether scores agree but for rounding."""
    return torch.allclose(a.double(), b.double(), rtol=0, atol=_slack(a, b), equal_nan=True)
