"""Prefetching: a background thread prepares the next items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

X = TypeVar("X")
Y = TypeVar("Y")


def ahead(work: Callable[[X], Y], items: Iterable[X], n: int) -> Iterator[Y]:
    """Yield ``work(item)`` of every item in order, while one thread works up to ``n`` items ahead.

    ``work`` is called in the thread, for one item at a time and in order; it must not draw random numbers
    that another thread draws from too. An error of it is raised in the place of its result. The thread ends
    with the iteration, also when the caller leaves it early.

    Examples
    --------
    >>> list(ahead(abs, [-1, 2, -3], n=2))
    [1, 2, 3]
    """
    todo = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="nclib-ahead") as thread:
        waiting = deque(thread.submit(work, item) for item in islice(todo, n))
        try:
            while waiting:
                waiting.extend(thread.submit(work, item) for item in islice(todo, 1))
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
