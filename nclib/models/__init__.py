"""Image-text models that compare every image with every caption of a batch at once.

An author's own model needs :class:`Matcher`, or one of the bases :class:`FragmentMatcher` (scores from
regions and words) and :class:`CosineMatcher` (one vector each), with :func:`option` and :func:`register`.
"""

from __future__ import annotations

from nclib.common.tokens import Tokens
from nclib.models import clip as _clip
from nclib.models import ensemble as _ensemble
from nclib.models import imram as _imram
from nclib.models import omit as _omit
from nclib.models import pcme as _pcme
from nclib.models import pvse as _pvse
from nclib.models import scan as _scan
from nclib.models import vse as _vse
from nclib.models import vse_inf as _vse_inf
from nclib.models.base import CaptionEncoding, ImageEncoding, Matcher
from nclib.models.cosine import CosineMatcher
from nclib.models.encoders import l2
from nclib.models.options import option
from nclib.models.pairwise import FragmentMatcher
from nclib.models.registry import available, build, options, register, settings
from nclib.models.scoring import similarity_matrix

__all__ = [
    "CaptionEncoding",
    "CosineMatcher",
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

del _clip, _ensemble, _imram, _omit, _pcme, _pvse, _scan, _vse, _vse_inf
