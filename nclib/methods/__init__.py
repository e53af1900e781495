"""Training methods by name: one file per method, in the order of its paper."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from nclib.common.options import make
from nclib.common.registry import Catalogue
from nclib.methods.base import Batch, Loop, Method, Steps, StepTerms, Terms, Truth
from nclib.methods.registry import METHODS

__all__ = [
    "Batch",
    "Loop",
    "Method",
    "StepTerms",
    "Steps",
    "Terms",
    "Truth",
    "available",
    "build",
    "options",
    "settings",
]

# A new method is one new file here: importing it registers it.
for _file in sorted(Path(__file__).parent.glob("[!_]*.py")):
    import_module(f"{__name__}.{_file.stem}")


def available() -> Catalogue:
    """Return the catalogue of methods: name, what it does, paper."""
    return METHODS.catalogue()


def options(name: str) -> type:
    """Return the options dataclass of a method.

    Raises
    ------
    ValueError
        When there is no method of that name.
    """
    return METHODS[name].factory.Options


def settings(name: str, key: str) -> dict[str, Any]:
    """Return the values that a method's own paper sets for ``key``: a data set's name or ``quick``."""
    return dict(METHODS[name].factory.settings.get(key, {}))


def build(name: str, **values: Any) -> Method:
    """Build a method by name with its own options.

    Parameters
    ----------
    name : str
        One of :func:`available`.
    **values
        The method's options, by the paper's names; those not given keep their defaults.

    Raises
    ------
    ValueError
        For an unknown method, an unknown option, or a value out of range; names what is allowed.
    """
    cls = METHODS[name].factory
    return cls(make(cls.Options, values))
