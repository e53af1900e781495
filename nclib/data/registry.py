"""The registry of datasets and the checks that all loaders share."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from nclib.common.registry import Registry
from nclib.data.dataset import Dataset

datasets: Registry[Callable[..., Dataset]] = Registry("dataset")


def check_count(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    """Return ``value`` as int, or say what is allowed."""
    limits = f"at least {low}" if high is None else f"in {low}..{high}"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer {limits}, got {value!r}") from None
    if isinstance(value, bool) or number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be an integer {limits}, got {value!r}")
    return number


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """Return ``value`` when it is allowed, else raise an error that lists what is."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value
