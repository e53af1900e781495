"""Category retrieval under noisy labels: an image finds texts of its class, and a text images.

One file per method; ``nclib.run`` trains the names in :func:`available`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from nclib.common.options import make
from nclib.common.registry import Catalogue
from nclib.label_noise.base import Batch, DeepMethod, Loop, Projector, Shape, Terms, Training, Truth
from nclib.label_noise.networks import Heads, Prototypes
from nclib.label_noise.registry import METHODS

__all__ = [
    "Batch",
    "DeepMethod",
    "Heads",
    "Loop",
    "Projector",
    "Prototypes",
    "Shape",
    "Terms",
    "Training",
    "Truth",
    "available",
    "build",
    "options",
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


def build(name: str, **values: Any) -> DeepMethod | Projector:
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
