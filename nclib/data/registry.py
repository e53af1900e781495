"""Catalogue of data sets for both tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from nclib.common.checks import check_choice
from nclib.common.options import Catalogue, did_you_mean, rules
from nclib.common.registry import Registry
from nclib.data.category_data import CategoryData
from nclib.data.dataset import Dataset

C = TypeVar("C", bound=Callable[..., Any])

NAMED = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
#: What a data set of each task returns.
TASKS: dict[str, type] = {"pairs": Dataset, "categories": CategoryData}


class DatasetRegistry(Registry[Callable[..., Any]]):
    """Data sets of both tasks under distinct names; ``of[task]`` is the registry of one task."""

    def __init__(self) -> None:
        super().__init__("dataset")
        self.of: dict[str, Registry[Callable[..., Any]]] = {task: Registry("dataset") for task in TASKS}

    def register(self, name: str, *, summary: str, paper: str = "", task: str = "pairs") -> Callable[[C], C]:
        """Return a decorator that adds a data set to the catalogue.

        Parameters
        ----------
        name : str
            Name for :func:`nclib.data.load` and the parameter ``dataset`` of runs; can be taken once.
        summary : str
            A few words for the catalogue.
        paper : str
            Source of the data, for the catalogue.
        task : {"pairs", "categories"}
            ``"pairs"`` for image-caption retrieval; the function returns a :class:`~nclib.data.Dataset`.
            ``"categories"`` for category retrieval; it returns a :class:`~nclib.data.CategoryData`.

        Returns
        -------
        callable
            Decorator for a function whose parameters are the options of the data set.

        Raises
        ------
        ValueError
            When the name is taken or the task is unknown.
        TypeError
            When the function takes ``*args`` or ``**options``.

        Examples
        --------
        >>> from nclib import data
        >>> @data.register("two_views", summary="two views of ten classes", task="categories")
        ... def two_views(*, n_train: int = 20):
        ...     return data.load("planted_category", n_train=n_train)
        >>> len(data.load("two_views", n_train=30).train)
        30
        >>> datasets.remove("two_views")
        """
        check_choice("task", task, tuple(TASKS))
        add = super().register(name, summary=summary, paper=paper)

        def checked(factory: C) -> C:
            kinds = {p.kind for p in inspect.signature(factory).parameters.values()}
            if not kinds <= NAMED:
                raise TypeError(f"dataset {name!r}: every option needs a name, without *args and **options")
            old = self.task(name) if name in self else task
            add(factory)
            if old != task:  # defined again in a notebook
                self.of[old].remove(name)
            return self.of[task].register(name, summary=summary, paper=paper)(factory)

        return checked

    def remove(self, name: str) -> None:
        """Take a data set out again, as tests and examples do."""
        self.of[self.task(name)].remove(name)
        super().remove(name)

    def task(self, name: str) -> str:
        """Return the task of a data set, ``"pairs"`` or ``"categories"``."""
        entry = self[name]
        return next(task for task, own in self.of.items() if entry.name in own)


datasets = DatasetRegistry()


register = datasets.register


def load(name: str, **options: Any) -> Any:
    """Return a data set by name.

    Parameters
    ----------
    name : str
        One of ``available()``.
    **options
        Options of that data set, for instance ``size`` for ``emoji`` and ``root`` for ``f30k``.

    Returns
    -------
    Dataset or CategoryData
        As the data set's task says.

    Raises
    ------
    ValueError, TypeError
        When the name or an option is unknown (the message lists the options), a value is out of range, or a
        data set returns something else than its task asks for.

    Examples
    --------
    >>> from nclib import data
    >>> planted = data.load("planted", n_train=8)
    >>> planted
    Dataset('planted': train 8x5, val 64x5, test 64x5 captions; 12 regions of 32; 84 words; 2a999a25c4d3)
    >>> planted.train.captions.text(0)
    'concept15b concept33a concept24b concept22b'
    >>> data.load("planted_category", n_train=50).train.labels[:5]
    array([5, 8, 9, 5, 3])
    """
    entry = datasets[name]
    allowed = rules(entry.options)
    for option in options:
        if option not in allowed:
            hint = did_you_mean(option, allowed) or "."
            raise TypeError(f"dataset {name!r} has no option {option!r}{hint} Options: {', '.join(allowed)}.")
    data = entry.factory(**options)
    task = datasets.task(name)
    if not isinstance(data, TASKS[task]):
        raise TypeError(
            f"dataset {name!r} is registered with task={task!r} and must return a {TASKS[task].__name__}, "
            f"got {type(data).__name__}"
        )
    return data


def available(task: str | None = None) -> Catalogue:
    """Return the names of the data sets, each with its summary.

    Parameters
    ----------
    task : {"pairs", "categories"}, optional
        Data sets of one task; default: all.

    Returns
    -------
    Catalogue
        A dict that prints as a table.

    Raises
    ------
    ValueError
        When the task is unknown.

    Examples
    --------
    >>> from nclib import data
    >>> sorted(data.available("categories"))[:2]
    ['category_file', 'emoji_category']
    >>> print(data.available("pairs")["planted"])
    synthetic concepts behind regions and words; tiny, for tests and checks
    """
    if task is None:
        return datasets.available()
    check_choice("task", task, tuple(TASKS))
    return datasets.of[task].available()
