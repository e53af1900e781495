"""Audit of picture-caption pairs: which are wrong, how many, and which caption belongs to which picture.

``nclib.audit(images=I, captions=T)`` returns an :class:`Audit`: a table with a probability of being wrong per
pair, the estimated share of wrong pairs, proposed partners, patterns such as a shifted run of rows, and the
sentence that says what the probabilities assume.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from nclib.audit.neighbours import Neighbours
from nclib.audit.pairs import Pairs
from nclib.audit.result import Audit, audit
from nclib.audit.scores import SCORES

__all__ = ["SCORES", "Audit", "Neighbours", "Pairs", "audit"]


class _Callable(ModuleType):
    # Package and function share a name: importing a part of the package puts the module at `nclib.audit`.
    def __call__(self, *args: Any, **kwargs: Any) -> Audit:
        return audit(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
