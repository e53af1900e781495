"""What only the first two tables of OMIT compare with (arXiv 2603.14349): nine models, and whole pictures.

Importing this package registers HREM, SBE, NAAF, VSRN, TERAN, CHAN, PCME, PVSE and CLIP as models of nclib,
residual networks and CLIP's image tower as networks for pictures (the option ``image`` of other models), and
the options of data by which pictures and boxes are read (:mod:`baselines.omit.data`):

    nclib run plain --import book/baselines/omit --model hrem

Grids name it with the key ``import``. The weights that are published are listed in :mod:`baselines.weights`.
"""

from collections.abc import Mapping
from typing import Any

from baselines.omit import (  # noqa: F401  (each registers itself)
    chan,
    clip,
    data,
    hrem,
    naaf,
    pcme,
    pictures,
    pvse,
    sbe,
    teran,
    vsrn,
)

MODELS = ("chan", "clip", "hrem", "naaf", "pcme", "pvse", "sbe", "teran", "vsrn")
"""Names under which the models are registered."""
PLACE = "book/baselines/omit"
"""This package, as ``--import`` takes it."""


def needed(arguments: Mapping[str, Any]) -> bool:
    """Return whether a run with these arguments of :func:`nclib.run` needs this package."""
    of_pictures = (arguments.get("model_options") or {}).get("image", "regions") != "regions"
    data_given = arguments.get("data_options") or {}
    of_data = any(data_given.get(name) for name in ("pixels", "boxes", "pieces"))
    return of_pictures or of_data or bool({*str(arguments.get("model", "")).split("+")} & {*MODELS})
