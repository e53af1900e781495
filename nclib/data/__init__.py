"""Data sets for both tasks, by name: bundled, planted, and the field's file formats.

``load(name, **options)`` returns a :class:`Dataset` (image-caption pairs) or a :class:`CategoryData` (pairs
with categories), each with three splits; ``available()`` lists the names, ``register`` adds others.
"""

from nclib.common.files import digest
from nclib.data import category_features as _category_features  # noqa: F401  (each registers itself)
from nclib.data import flickr8k as _flickr8k  # noqa: F401
from nclib.data import own as _own  # noqa: F401
from nclib.data import planted as _planted  # noqa: F401
from nclib.data import region_features as _region_features  # noqa: F401
from nclib.data.category_data import CategoryData, CategorySplit
from nclib.data.dataset import Captions, Dataset, Split
from nclib.data.emoji import categories as _categories  # noqa: F401
from nclib.data.emoji import pairs as _pairs  # noqa: F401
from nclib.data.registry import available, load, register
from nclib.data.vocabulary import Vocabulary

__all__ = [
    "Captions",
    "CategoryData",
    "CategorySplit",
    "Dataset",
    "Split",
    "Vocabulary",
    "available",
    "digest",
    "load",
    "register",
]
