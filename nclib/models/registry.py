"""The catalogue of models: registration by name, and what it asks of a model's class."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from nclib.common.options import call_mistake, misfits, signature
from nclib.common.registry import Catalogue, Registry
from nclib.common.tokens import Tokens
from nclib.models.base import SIZES, Matcher, Option, declared_options

MODELS: Registry[type[Matcher]] = Registry("model")

M = TypeVar("M", bound=type)

# What loops, methods and the bases call on a model.
CALLED = (
    "encode_images",
    "encode_captions",
    "similarity",
    "paired_similarity",
    "pair_vectors",
    "pair_scores",
    "own_loss",
)


def register(name: str, *, summary: str, paper: str = "") -> Callable[[M], M]:
    """File a class of models under a name; from then on runs, tables and the command line know it.

    Parameters
    ----------
    name, summary, paper : str
        Its name in ``nclib.run(model=name)``, one line for the catalogue, where it comes from.

    Returns
    -------
    callable
        A decorator that returns the class unchanged.

    Raises
    ------
    ValueError, TypeError
        If the name is taken; if the class is not derived from :class:`Matcher`, lacks a method, has one that
        does not take what it is called with, or has an option that cannot be given by name or has no default.
    """

    def add(cls: M) -> M:
        mistake = _mistake_in(cls)
        if mistake:
            raise TypeError(f"model {name!r}: {mistake}")
        MODELS.register(name, summary=summary, paper=paper)(cls)
        return cls

    return add


def _mistake_in(cls: type) -> str:
    """What keeps a class from being built and used as a model, in one line; empty if nothing does."""
    if not (isinstance(cls, type) and issubclass(cls, Matcher)):
        return f"{getattr(cls, '__name__', cls)} must be a class derived from nclib.models.Matcher"
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        return f"class {cls.__name__} lacks {', '.join(missing)}"
    if wrong := _range_mistake(cls):
        return wrong
    for called in CALLED:
        based = [vars(c)[called] for c in cls.__mro__ if called in vars(c)]
        if based and (wrong := call_mistake(cls, called, based[-1])):
            return wrong
    owner = next((c for c in cls.__mro__ if "__init__" in vars(c)), cls)
    for parameter in signature(owner).values():
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            return (
                f"{owner.__name__}.__init__ takes {parameter.name!r} by position; options have names: write "
                "def __init__(self, *, ...)"
            )
    taken = parameters_of(cls)
    if not {"feature_dim", "vocab_size"} <= set(taken):
        return (
            f"{owner.__name__}.__init__ must take **common and pass it on to super().__init__(**common); the "
            "sizes of the data come that way"
        )
    unset = [n for n, p in taken.items() if p.default is p.empty and n not in SIZES]
    return f"option {unset[0]!r} of {cls.__name__} needs a default" if unset else ""


def _range_mistake(model: Any) -> str:
    """Return what is wrong with the ``score_range`` of a class or model, in one line; empty if nothing is."""
    found = model.score_range
    pair = isinstance(found, (tuple, list)) and len(found) == 2
    if isinstance(found, property) or (
        pair and all(isinstance(x, (int, float)) for x in found) and found[0] < found[1]
    ):
        return ""
    return f"score_range={found!r}: must be two numbers, the smallest and the largest similarity"


def parameters_of(model: type) -> dict[str, inspect.Parameter]:
    """Return what a model takes by keyword: declared options, and constructors along its bases.

    A constructor that takes ``**common`` passes it on to its base, or to the class that it names as
    ``common_of``.
    """
    found: dict[str, inspect.Parameter] = {}
    for cls in (model, *inspect.getmro(getattr(model, "common_of", model))):
        for name, value in vars(cls).get("declared", {}).items():
            found.setdefault(name, _parameter(name, value))
        if "__init__" not in cls.__dict__:
            continue
        taken = signature(cls).values()
        found |= {p.name: p for p in taken if p.kind is p.KEYWORD_ONLY and p.name not in found}
        if not any(p.kind is p.VAR_KEYWORD for p in taken):
            break
    return found


def misfits_of(model: type, given: Mapping[str, Any]) -> list[str]:
    """List the options and sizes that are not of the type or in the range that a model declares.

    Parameters
    ----------
    model : type
    given : mapping of str to value

    Returns
    -------
    list of str
        One message per option; empty when all fit.
    """
    declared = declared_options((model, *inspect.getmro(getattr(model, "common_of", model))))
    found = misfits({k: v for k, v in given.items() if k not in declared}, parameters_of(model))
    for name, value in given.items():
        try:
            if name in declared:
                declared[name].checked(name, value)
            elif name in SIZES and isinstance(value, int) and value < 1:
                found.append(f"{name} must be a positive integer, got {value!r}")
        except ValueError as error:
            found.append(str(error))
    return found


def _parameter(name: str, found: Option) -> inspect.Parameter:
    hint: Any = os.PathLike[str] if found.file else found.rule.kind
    hint = inspect.Parameter.empty if hint is object else hint | None if found.default is None else hint
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=found.default, annotation=hint)


def build(
    name: str,
    *,
    feature_dim: int,
    vocab_size: int,
    n_regions: int = 12,
    embed_dim: int = 1024,
    sim_dim: int = 256,
    word_dim: int = 300,
    **own_options: Any,
) -> Any:
    """Build a model by name.

    Parameters
    ----------
    name : str
        One of :func:`available`.
    feature_dim, vocab_size, n_regions, embed_dim, sim_dim, word_dim : int
        Sizes, as in :class:`Matcher`; the field's precomputed features have 2048 numbers, and token ids
        include padding.
    **own_options
        The model's own options, such as ``dropout``; see :func:`options`.

    Returns
    -------
    Matcher

    Raises
    ------
    ValueError, TypeError
        For an unknown model or option, or a value that is not allowed; for a model from outside this package
        whose methods do not return what they must, tried on two images and three captions: shapes, the
        declared ``score_range``, a caption alone and beside a longer one, pairs alone.

    Examples
    --------
    >>> model = build("saf", feature_dim=68, vocab_size=500, embed_dim=64, sim_dim=16, word_dim=32)
    >>> model.score_range
    (0.0, 1.0)
    """
    factory = MODELS[name].factory
    given = (feature_dim, vocab_size, n_regions, embed_dim, sim_dim, word_dim)
    own = list(options(name))
    unknown = [key for key in own_options if key not in own]
    if unknown:
        raise ValueError(f"model {name!r} has no option {unknown[0]!r}. Its options: {', '.join(own)}.")
    taken = parameters_of(factory)
    sizes = {key: size for key, size in zip(SIZES, given, strict=True) if key in taken}
    if factory.__module__.startswith("nclib."):
        return factory(**sizes, **own_options)
    forgot = f"model {name!r}: {factory.__name__}.__init__ must call super().__init__(**common) first"
    try:
        model = factory(**sizes, **own_options)
    except AttributeError as error:
        if "before Module.__init__()" not in str(error):
            raise
        raise TypeError(forgot) from error
    if not hasattr(model, "memory_budget"):  # set by Matcher.__init__
        raise TypeError(forgot)
    if model.device.type != "meta":
        modes = {module: module.training for module in model.modules()}
        model.eval()
        with torch.random.fork_rng(devices=[]):
            _try_out(model, name)
        for module, training in modes.items():
            module.training = training
    return model


@torch.no_grad()
def _try_out(model: Matcher, name: str) -> None:
    """Encode and compare two images and three captions in eval mode.

    A TypeError says what is not of the type or shape that it must have, a ValueError which scores are not as
    every model's must be.
    """
    if wrong := _range_mistake(model):  # set by its constructor
        raise TypeError(f"model {name!r}: {wrong}")
    images = model.encode_images(torch.rand(2, model.n_regions, model.feature_dim))
    last = model.vocab_size - 1
    tokens = Tokens(torch.tensor([[0, last, 0, 0], [0, 0, 0, last], [last, 0, 0, 0]]), (3, 4, 3))
    captions = model.encode_captions(tokens)
    for method, encoding, n in (("encode_images", images, 2), ("encode_captions", captions, 3)):
        lacking = [part for part in ("__len__", "select", "detach", "concat") if not hasattr(encoding, part)]
        if lacking:
            raise TypeError(
                f"model {name!r}: {method} must return an encoding such as ImageEncoding or CaptionEncoding, "
                f"got {type(encoding).__name__} without {', '.join(lacking)}"
            )
        if len(encoding) != n:
            raise TypeError(f"model {name!r}: {method} gave {len(encoding)} rows for {n}")
    scores = model.similarity(images, captions)
    found = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if found != (2, 3):
        raise TypeError(
            f"model {name!r}: similarity must be (images, captions), (2, 3) for 2 images and 3 captions, got "
            f"{found}"
        )
    if any("score_range" in vars(c) for c in type(model).__mro__ if c is not Matcher) or (
        "score_range" in vars(model)
    ):
        low, high = model.score_range
        slack = _slack(torch.tensor([x for x in (low, high) if math.isfinite(x)] or [1.0]), scores)
        least, most = (float(x) for x in torch.aminmax(scores))
        if not (low - slack <= least and most <= high + slack):
            raise ValueError(
                f"model {name!r}: similarity gave scores from {least:.4g} to {most:.4g} on random data, "
                f"outside score_range={model.score_range!r}"
            )
    if not torch.equal(model.similarity(images, captions), scores):
        return  # scores that are drawn cannot be compared
    first = model.encode_captions(Tokens(tokens.ids[:1, : tokens.lengths[0]], tokens.lengths[:1]))
    if not _near(alone := model.similarity(images, first), scores[:, :1]):
        raise ValueError(
            f"model {name!r}: a caption scores {float(scores[0, 0]):.6g} beside a longer one and "
            f"{float(alone[0, 0]):.6g} alone; padding beyond tokens.lengths must count nothing"
        )
    pairs = model.paired_similarity(images, captions.select([0, 1]))
    if tuple(pairs.shape) != (2,) or not _near(pairs, scores[:, :2].diagonal()):
        raise ValueError(
            f"model {name!r}: paired_similarity must be the diagonal of similarity, "
            f"{_short(scores[:, :2].diagonal())} for 2 pairs, got {_short(pairs)}"
        )


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


def available() -> Catalogue:
    """Return the models that :func:`build` knows, with one line for each."""
    return MODELS.catalogue()


def options(name: str) -> Catalogue:
    """Return the options of a model and their defaults, without the sizes that all models take.

    Parameters
    ----------
    name : str
        One of :func:`available`.

    Returns
    -------
    Catalogue
        A dict of str to str that prints one option per line, with its help where it has one.

    Raises
    ------
    ValueError
        For an unknown model.

    Examples
    --------
    >>> options("sgr")["steps"]
    '3'
    """
    factory = MODELS[name].factory
    found = parameters_of(factory)
    declared = declared_options((factory, *inspect.getmro(getattr(factory, "common_of", factory))))
    helps = {k: option.about() for k, option in declared.items() if option.rule.help}
    return Catalogue({k: repr(p.default) for k, p in found.items() if k not in SIZES}, helps)


def settings(name: str, key: str) -> dict[str, Any]:
    """Return the schedule that a model's own paper sets; its loss and ``model_options`` where they differ.

    Parameters
    ----------
    name : str
        One of :func:`available`.
    key : str
        Name of a data set, or ``quick`` or ``standard`` for the preset of that name.

    Returns
    -------
    dict of str to value
        Empty where the model sets none.
    """
    return dict(getattr(MODELS[name].factory, "settings", {}).get(key, {}))
