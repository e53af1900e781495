"""Category retrieval under noisy labels: an image finds texts of its class, and a text images.

One file per method; ``nclib.run`` trains the names in :func:`available`. To write one's own, subclass
:class:`DeepMethod` or :class:`Projector`, declare the fields of its ``Options`` with :func:`option`, and
decorate the class with :func:`register`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from nclib.common.registry import Catalogue
from nclib.label_noise.base import (
    METHODS,
    DeepMethod,
    LabelBatch,
    LabelLoop,
    LabelTruth,
    Projector,
    Shape,
    Terms,
    Training,
    option,
    register,
)
from nclib.label_noise.parts.networks import Heads, Prototypes

__all__ = [
    "DeepMethod",
    "Heads",
    "LabelBatch",
    "LabelLoop",
    "LabelTruth",
    "Projector",
    "Prototypes",
    "Shape",
    "Terms",
    "Training",
    "available",
    "build",
    "option",
    "options",
    "register",
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
    >>> available()["mcca"]
    'canonical correlation of the two views; no labels (Rupnik and Shawe-Taylor, SiKDD 2010)'
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


def build(name: str, **values: Any) -> DeepMethod | Projector:
    """Build a method by name with its own options.

    Parameters
    ----------
    name : str
        One of :func:`available`.
    **values
        The method's options, by the paper's names; those not given keep their defaults.

    Returns
    -------
    DeepMethod or Projector

    Raises
    ------
    ValueError
        For an unknown method, an unknown option, or a value out of range; names what is allowed.

    Examples
    --------
    >>> build("mrl", beta=0.9).options
    MRLOptions(beta=0.9, loss='robust', tau1=1.0, tau2=1.0)
    >>> build("mlr")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: unknown category method 'mlr'; did you mean 'mrl'? Available: ...
    """
    return METHODS.create(name, **values)
