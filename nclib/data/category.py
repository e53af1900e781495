"""Former place of the category data, kept while callers move to :mod:`nclib.data`."""

from functools import partial

from nclib.data import CategoryData, CategorySplit, load
from nclib.data import available as _available
from nclib.data.registry import datasets as category_datasets

available = partial(_available, "categories")

__all__ = ["CategoryData", "CategorySplit", "available", "category_datasets", "load"]
