"""Image-text models that compare every image with every caption of a batch at once.

An author's own model needs :class:`Matcher`, or one of the bases :class:`FragmentMatcher` (scores from
regions and words) and :class:`CosineMatcher` (one vector each), with :func:`option` and :func:`register`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, Matcher, option
from nclib.models.encoders import l2
from nclib.models.region_words import CosineMatcher, DualEncoder, FragmentMatcher
from nclib.models.registry import available, build, options, register, settings
from nclib.models.scoring import similarity_matrix

__all__ = [
    "CaptionEncoding",
    "CosineMatcher",
    "DualEncoder",
    "FragmentMatcher",
    "ImageEncoding",
    "Matcher",
    "Tokens",
    "available",
    "build",
    "l2",
    "option",
    "options",
    "register",
    "settings",
    "similarity_matrix",
]

# A new model is one new file here: importing it registers it.
for _file in sorted(Path(__file__).parent.glob("[!_]*.py")):
    import_module(f"{__name__}.{_file.stem}")
