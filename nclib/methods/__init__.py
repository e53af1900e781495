"""Training methods for wrong pairs by name: one file per method, in the order of its paper.

To write one's own, import the names of this module: subclass :class:`Method`, declare the fields of its
``Options`` with :func:`option`, decorate the class with :func:`register`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from nclib.common.registry import Catalogue
from nclib.methods.base import (
    METHODS,
    Batch,
    Loop,
    Method,
    Steps,
    StepTerms,
    Terms,
    Truth,
    option,
    register,
)
from nclib.methods.coteaching import CoTeaching
from nclib.methods.parts.detector import detector_report

__all__ = [
    "Batch",
    "CoTeaching",
    "Loop",
    "Method",
    "StepTerms",
    "Steps",
    "Terms",
    "Truth",
    "available",
    "build",
    "detector_report",
    "option",
    "options",
    "register",
    "settings",
]

# A new method is one new file here: importing it registers it.
for _file in sorted(Path(__file__).parent.glob("[!_]*.py")):
    import_module(f"{__name__}.{_file.stem}")


def available() -> Catalogue:
    """Return the catalogue of methods: name, summary, paper.

    Returns
    -------
    Catalogue
        A dict from name to summary that prints as a table.

    Examples
    --------
    >>> available()["rcl"]
    'complementary contrastive loss: only negatives are supervised; no warm-up, no division \
(Hu et al., TPAMI 2023)'
    """
    return METHODS.catalogue()


def options(name: str) -> type:
    """Return the options dataclass of a method.

    Parameters
    ----------
    name : str
        One of :func:`available`.

    Returns
    -------
    type
        A frozen dataclass.

    Raises
    ------
    ValueError
        For an unknown method.
    """
    return METHODS.options(name)


def settings(name: str, key: str) -> dict[str, Any]:
    """Return the values that a method's own paper sets.

    Parameters
    ----------
    name : str
        One of :func:`available`.
    key : str
        Name of a data set, or ``quick`` or ``standard`` for the preset of that name.

    Returns
    -------
    dict
        Schedule and options by name; empty where the paper says nothing.

    Raises
    ------
    ValueError
        For an unknown method.

    Examples
    --------
    >>> settings("ncr", "f30k")
    {'warmup_epochs': 5, 'epochs': 40, 'decay_every': 30}
    """
    return METHODS.settings(name, key)


def build(name: str, **values: Any) -> Method:
    """Build a method by name with its own options.

    Parameters
    ----------
    name : str
        One of :func:`available`.
    **values
        The method's options, by the paper's names; those not given keep their defaults.

    Returns
    -------
    Method

    Raises
    ------
    ValueError
        For an unknown method, an unknown option, or a value out of range; names what is allowed.

    Examples
    --------
    >>> build("l2rm", rho=0.2).options.rho
    0.2
    >>> build("l2rm", roh=0.2)
    Traceback (most recent call last):
    ValueError: bad parameters: unknown parameter 'roh'; did you mean 'rho'?
    """
    return METHODS.create(name, **values)
