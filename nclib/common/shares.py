"""Updates that need all captions of a batch, where several processes compare a share of the captions each.

A model that updates running statistics calls :func:`with_all_captions`. The code that deals out the shares
opens :func:`held_back` around the model and makes the updates when it has gathered all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

Updates = dict[Callable[..., None], list[tuple[Tensor, ...]]]

_later: ContextVar[Updates | None] = ContextVar("later", default=None)


def with_all_captions(update: Callable[..., Any], *rows: Tensor) -> None:
    """Call ``update(*rows)`` with the rows of the whole batch, each (C, ...): one per caption compared.

    It is called at once, or inside :func:`held_back` by the code that opened it.
    """
    later = _later.get()
    if later is None:
        update(*rows)
    else:
        later.setdefault(update, []).append(rows)


@contextmanager
def held_back() -> Iterator[Updates]:
    """Collect the updates of :func:`with_all_captions`: yields their rows, call by call, by update."""
    later: Updates = {}
    token = _later.set(later)
    try:
        yield later
    finally:
        _later.reset(token)
