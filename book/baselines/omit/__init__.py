"""What only the first two tables of OMIT compare with (arXiv 2603.14349): nine models, and whole pictures.

Importing this package registers HREM, SBE, NAAF, VSRN, TERAN, CHAN, PCME, PVSE and CLIP as models of nclib,
and residual networks and CLIP's image tower as networks for pictures (the option ``image`` of other models):

    nclib run plain --import book/baselines/omit --model hrem

Grids name it with the key ``import``. The weights that are published are listed in :mod:`baselines.weights`.
"""

from collections.abc import Mapping
from typing import Any

from baselines.omit import chan, clip, hrem, naaf, pcme, pictures, pvse, sbe, teran, vsrn

__all__ = ["chan", "clip", "hrem", "naaf", "needed", "pcme", "pictures", "pvse", "sbe", "teran", "vsrn"]

MODELS = ("chan", "clip", "hrem", "naaf", "pcme", "pvse", "sbe", "teran", "vsrn")
"""Names under which the models are registered."""
PLACE = "book/baselines/omit"
"""This package, as ``--import`` takes it."""


def needed(arguments: Mapping[str, Any]) -> bool:
    """Return whether a run with these arguments of :func:`nclib.run` needs this package."""
    of_pictures = (arguments.get("model_options") or {}).get("image", "regions") != "regions"
    return of_pictures or bool({*str(arguments.get("model", "")).split("+")} & {*MODELS})
