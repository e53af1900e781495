"""Category retrieval under noisy labels: an image finds texts of its class, and a text images.

One file per method. :func:`run` trains one and returns its record; ``nclib.run`` calls it for the names in
:func:`available`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nclib.common.options import make
from nclib.common.registry import Catalogue
from nclib.label_noise.base import Batch, DeepMethod, Loop, Projector, Shape, Terms, Training, Truth
from nclib.label_noise.networks import Heads, Prototypes
from nclib.label_noise.registry import METHODS

if TYPE_CHECKING:
    from nclib.runs.label_record import CategoryRecord, collect
    from nclib.runs.labels import check_parameters, open_run, parameters, resolve, run

__all__ = [
    "Batch",
    "CategoryRecord",
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
    "check_parameters",
    "collect",
    "open_run",
    "options",
    "parameters",
    "resolve",
    "run",
]

# A new method is one new file here: importing it registers it.
for _file in sorted(Path(__file__).parent.glob("[!_]*.py")):
    import_module(f"{__name__}.{_file.stem}")

_LATE = {
    **dict.fromkeys(("run", "resolve", "parameters", "check_parameters", "open_run"), "nclib.runs.labels"),
    **dict.fromkeys(("CategoryRecord", "collect"), "nclib.runs.label_record"),
}


def __getattr__(name: str) -> Any:
    # The experiment imports nclib.runs.pairs, which may be importing this package.
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
