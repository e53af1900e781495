"""Image-text models that compare every image with every caption of a batch at once.

An author's own model needs :class:`Matcher`, or one of the bases :class:`FragmentMatcher` (scores from
regions and words) and :class:`CosineMatcher` (one vector each), with :func:`option` and :func:`register`.

Examples
--------
>>> model = build("saf", feature_dim=68, vocab_size=500, embed_dim=64, sim_dim=16, word_dim=32)
>>> model.score_range
(0.0, 1.0)
>>> print(options("bow").catalogue())  # doctest: +NORMALIZE_WHITESPACE
feature_dim  needed  width of a region feature; a whole number, at least 1
vocab_size   needed  number of token ids, padding included; a whole number, at least 1
n_regions    12      regions per image; a whole number, at least 1
embed_dim    1024    width of the common space; a whole number, at least 1
sim_dim      256     width of a similarity vector; a whole number, at least 1
word_dim     300     width of a word embedding; a whole number, at least 1
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, Matcher, option
from nclib.models.compiled import compiling
from nclib.models.encoders import l2
from nclib.models.region_words import CosineMatcher, DualEncoder, FragmentMatcher
from nclib.models.registry import MODELS, register
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
    "compiling",
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

available, build, options, settings = MODELS.available, MODELS.build, MODELS.options, MODELS.settings
