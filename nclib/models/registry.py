"""The catalogue of models and the checks that their options share."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from nclib.common.options import signature
from nclib.common.registry import Catalogue, Registry

MODELS: Registry[Any] = Registry("model")

SIZES = ("feature_dim", "vocab_size", "n_regions", "embed_dim", "sim_dim", "word_dim")
"""What :func:`build` passes to every model."""


def choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``allowed``, else raise a ValueError that lists them."""
    names = sorted(allowed)
    if value not in names:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, names))}, got {value!r}")
    return value


def local_path(name: str, path: str | None, of: str, chosen: str, *needs: str) -> None:
    """Raise a ValueError when a path is missing, or given though the choice of ``of`` does not read it."""
    if chosen in needs and not path:
        raise ValueError(f"{of}={chosen!r} needs {name}, a local path; nothing is downloaded")
    used_with(name, path, "", of, chosen, *needs)


def used_with(name: str, value: Any, usual: Any, of: str, chosen: str, *uses: str) -> None:
    """Raise a ValueError for an option that is not as usual though the choice of ``of`` does not use it."""
    if chosen not in uses and value not in (usual, None):
        known = " or ".join(map(repr, uses))
        raise ValueError(f"{name}={value!r} is used with {of}={known} only, got {of}={chosen!r}")


def positive(**values: float) -> None:
    """Raise a ValueError for the first of ``values`` that is not a positive number."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{name} must be a positive number, got {value!r}")


def positive_integer(**values: int) -> None:
    """Raise a ValueError for the first of ``values`` that is not a positive integer."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}")


def parameters_of(model: type) -> dict[str, inspect.Parameter]:
    """Return what a model's constructor takes, with what it passes on as ``**common``.

    That goes to its base, or to the class that it names as ``common_of``.
    """
    found: dict[str, inspect.Parameter] = {}
    for cls in (model, *inspect.getmro(getattr(model, "common_of", model))):
        if "__init__" not in cls.__dict__:
            continue
        taken = signature(cls).values()
        found |= {p.name: p for p in taken if p.kind is p.KEYWORD_ONLY and p.name not in found}
        if not any(p.kind is p.VAR_KEYWORD for p in taken):
            break
    return found


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
    feature_dim : int
        Width of a region feature; 2048 for the field's precomputed features.
    vocab_size : int
        Number of token ids, padding included.
    n_regions : int
        Regions per image.
    embed_dim, sim_dim, word_dim : int
        Width of the common space, of a similarity vector, of a word embedding.
    **own_options
        The model's own options, such as ``dropout``; see :func:`options`.

    Returns
    -------
    Matcher
        A ``torch.nn.Module`` with ``encode_images``, ``encode_captions`` and ``similarity``.

    Raises
    ------
    ValueError
        For an unknown model or option, or a size that is not a positive integer.

    Examples
    --------
    >>> model = build("saf", feature_dim=68, vocab_size=500, embed_dim=64, sim_dim=16, word_dim=32)
    >>> model.score_range
    (0.0, 1.0)
    """
    factory = MODELS[name].factory
    sizes = {
        "feature_dim": feature_dim,
        "vocab_size": vocab_size,
        "n_regions": n_regions,
        "embed_dim": embed_dim,
        "sim_dim": sim_dim,
        "word_dim": word_dim,
    }
    positive_integer(**sizes)
    own = list(options(name))
    unknown = [key for key in own_options if key not in own]
    if unknown:
        raise ValueError(f"model {name!r} has no option {unknown[0]!r}. Its options: {', '.join(own)}.")
    return factory(**sizes, **own_options)


def available() -> Catalogue:
    """Return the models that :func:`build` knows, with a line on each."""
    return MODELS.catalogue()


def options(name: str) -> Catalogue:
    """Return the options of a model and their defaults, without the sizes that all models take.

    Raises
    ------
    ValueError
        For an unknown model.

    Examples
    --------
    >>> options("sgr")["steps"]
    '3'
    """
    found = parameters_of(MODELS[name].factory)
    return Catalogue({k: repr(p.default) for k, p in found.items() if k not in SIZES})


def settings(name: str, key: str) -> dict[str, Any]:
    """Return the schedule that a model's own paper sets for ``key``: a data set's name or ``quick``."""
    return dict(getattr(MODELS[name].factory, "settings", {}).get(key, {}))
