"""Datasets: bundled, planted, and the field's file formats, all in one shape.

``load(name, **options)`` returns a :class:`Dataset` of three :class:`Split`; ``available()`` lists the names.
Data for category retrieval have another shape and a catalogue of their own, :mod:`nclib.data.category`;
``load`` knows their names as well.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from nclib.common.registry import Catalogue
from nclib.data import category
from nclib.data import emoji as _emoji  # noqa: F401  (each registers itself)
from nclib.data import planted as _planted  # noqa: F401
from nclib.data import precomputed as _precomputed  # noqa: F401
from nclib.data.dataset import Captions, Dataset, Split
from nclib.data.registry import datasets
from nclib.data.vocabulary import Vocabulary

__all__ = ["Captions", "Dataset", "Split", "Vocabulary", "available", "load"]


def load(name: str, **options: Any) -> Any:
    """Return a dataset by name.

    Parameters
    ----------
    name : str
        One of ``available()``, or of ``nclib.data.category.available()``.
    **options
        Options of that dataset, for instance ``size`` for ``emoji`` and ``root`` for ``f30k``.

    Returns
    -------
    Dataset or CategoryData

    Raises
    ------
    ValueError
        When the name is unknown or a value is out of range.
    TypeError
        When the dataset has no such option; the message lists the options.
    """
    if name not in datasets.catalogue() and name in category.available():
        return category.load(name, **options)
    entry = datasets[name]
    allowed = inspect.signature(entry.factory).parameters
    for option in options:
        if option not in allowed:
            near = difflib.get_close_matches(option, allowed, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"dataset {name!r} has no option {option!r}{hint} Options: {', '.join(allowed)}.")
    return entry.factory(**options)


def available() -> Catalogue:
    """Return the names of all datasets with a line on each."""
    return datasets.catalogue()
