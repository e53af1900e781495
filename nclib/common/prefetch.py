"""Work of the next items, done by a thread while the present one is in use."""

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

    Parameters
    ----------
    work : callable
        Called in the thread, for one item at a time and in order; it must not draw random numbers that
        another thread draws from too.
    items : iterable
        Taken in the thread of the caller.
    n : int
        Results that may wait, at least 1.

    Yields
    ------
    Y
        What a loop without a thread would have given. An error of ``work`` is raised here with the
        traceback of the thread, in the place of the result. The thread ends with the iteration, also when
        that is given up.
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
