"""Checks of arguments: every message names the argument, what was found and what is allowed."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from nclib.common.options import Rule

if TYPE_CHECKING:
    from torch import Tensor

#: Largest sum of squares of a row of features: networks weigh, add up and square again what they read, and
#: float32 ends at 3e38. Below the smallest, squares have lost their digits.
LARGEST, LEAST = 1e32, 1e-30

#: Kinds of numbers by their name in messages.
KINDS = {"floating numbers": "f", "whole numbers": "iu", "numbers": "fiu", "booleans": "b"}


def check(name: str, value: Any, rule: Rule) -> Any:
    """Return a value that the rule of the argument ``name`` accepts, else raise a ValueError."""
    value = value.item() if isinstance(value, np.generic) else value
    if not rule.accepts(value):
        raise ValueError(f"{name}={value!r}: {rule.describe()}")
    return rule.taken(value)


def check_count(name: str, value: Any, low: int = 1, high: int | None = None) -> int:
    """Return a whole number from ``low`` to ``high``."""
    return int(check(name, value, Rule(int, low=low, high=high)))


def check_counts(**values: Any) -> dict[str, int]:
    """Return whole numbers of at least 1, by name."""
    return {name: check_count(name, value) for name, value in values.items()}


def check_number(
    name: str, value: Any, low: float | None = None, high: float | None = None, above: float | None = None
) -> float:
    """Return a finite number from ``low`` to ``high`` that is larger than ``above``."""
    return float(check(name, value, Rule(float, low=low, high=high, above=above)))


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return one of the allowed words."""
    return str(check(name, value, Rule(str, choices=allowed)))


def check_array(what: str, array: Any, kinds: str, *shape: int | str) -> None:
    """Raise a ValueError unless an array has an allowed type and shape.

    Parameters
    ----------
    what : str
        Name of the array, at the head of the message.
    array : object
        A NumPy array or :class:`~nclib.data.rows.RowFile`; anything else is refused.
    kinds : str
        Type names, or names of :data:`KINDS`, joined by " or ".
    *shape : int or str
        Size of each axis; a word in place of any size of at least one.
    """
    dtype, sizes = getattr(array, "dtype", None), tuple(getattr(array, "shape", ()))
    fits = (
        isinstance(dtype, np.dtype)
        and dtype.isnative
        and any(dtype.kind in KINDS[kind] if kind in KINDS else dtype == kind for kind in kinds.split(" or "))
        and len(sizes) == len(shape)
        and all(n == size if isinstance(size, int) else n > 0 for n, size in zip(sizes, shape, strict=True))
    )
    if not fits:
        wanted = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        raise ValueError(f"{what} must be {kinds} ({wanted}), got {describe(array)}".lstrip())


def check_within(what: str, values: Any, n: int, error: type[Exception] = ValueError) -> None:
    """Raise an error unless whole numbers lie in 0 to n - 1."""
    if values.size and (values.min() < 0 or values.max() >= n):
        place = int(np.flatnonzero((values < 0) | (values >= n))[0])
        raise error(f"{what} must lie in 0..{n - 1}, got {values.reshape(-1)[place]} at place {place}")


def check_rows(what: str, n: int, **allowed: int) -> None:
    """Raise a ValueError unless something has as many rows as one of the things that are counted."""
    if n not in allowed.values():
        wanted = " or ".join(f"{count:,} ({name})" for name, count in allowed.items())
        raise ValueError(f"{what} must have {wanted} rows, got {n:,}")


def squares(rows: Any) -> np.ndarray:
    """Return the sum of squares of each row in float32, (n,); not finite where float32 does not hold it."""
    flat = np.asarray(rows).reshape(len(rows), math.prod(rows.shape[1:]))
    with np.errstate(over="ignore", invalid="ignore"):
        flat = flat.astype(np.float32, copy=False)
        return np.einsum("ij,ij->i", flat, flat)


def has_length(rows: Any) -> np.ndarray:
    """Return the rows of which float32 can take the length, bool (n,): not zero, NaN, huge or tiny."""
    total = squares(rows)
    return (total >= LEAST) & (total <= LARGEST)


def beyond(rows: Any) -> np.ndarray:
    """Return the rows of which a network cannot square the numbers, bool (n,): NaN, infinite or huge."""
    return ~(squares(rows) <= LARGEST)


def check_squares(what: str, rows: np.ndarray, numbers: Any = None) -> None:
    """Raise a ValueError that names the first row of :func:`beyond`, and its largest value.

    Parameters
    ----------
    what : str
        Name of a row, before its number.
    rows : ndarray, (n, features) or (n, regions, features)
    numbers : sequence of int, optional
        Numbers of the rows; by default from 0.
    """
    flat = rows.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        if flat @ flat <= LARGEST:  # one quick pass
            return
    if not (bad := beyond(rows)).any():
        return
    at = int(bad.argmax())
    size = np.where(np.isnan(rows[at]), np.inf, np.abs(rows[at]))
    place = tuple(int(i) for i in np.unravel_index(size.argmax(), size.shape))
    names = ("region", "feature")[-len(place) :]
    where = ", ".join(f"{name} {i}" for name, i in zip(names, place, strict=False))
    raise ValueError(
        f"{what} {at if numbers is None else numbers[at]}, {where} is {rows[at][place]:g}; values must be "
        f"finite, and the squares of a row add up to at most {LARGEST:g}. Make it again or take it out"
    )


def is_tensor(x: Any) -> TypeGuard[Tensor]:
    """Return whether ``x`` is a tensor; torch is not imported for it, as without torch no tensor exists."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def describe(array: Any) -> str:
    """Return type and shape of an array, such as ``float32 (3, 4)``, for messages."""
    dtype, shape = getattr(array, "dtype", None), getattr(array, "shape", None)
    if not isinstance(dtype, np.dtype):
        return f"{type(array).__name__} {'' if shape is None else tuple(shape)}".strip()
    order = "" if dtype.isnative else " in foreign byte order"
    return f"{dtype.newbyteorder('=').name}{order} {shape}"
