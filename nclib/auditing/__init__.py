"""Audit of picture-caption pairs: which are wrong, how many, and which caption belongs to which picture.

``nclib.audit(images=I, captions=T)`` returns an :class:`Audit`: a table with a probability of being wrong per
pair, the estimated share of wrong pairs, proposed partners, patterns such as a shifted run of rows, and the
sentence about what the probabilities assume. ``audit.judge(I, C)`` carries the calibration to other pairs.
"""

from nclib.auditing.neighbours import Neighbours
from nclib.auditing.pairs import Pairs
from nclib.auditing.scores import SCORES
from nclib.auditing.steps import Audit, audit

__all__ = ["SCORES", "Audit", "Neighbours", "Pairs", "audit"]
