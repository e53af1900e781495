"""Training methods of both tasks: base class, registry, and checks of what a method returns.

:class:`TrainingMethod` is the base of :class:`nclib.methods.Method` (wrong pairs) and of
:class:`nclib.label_noise.DeepMethod` and :class:`nclib.label_noise.Projector` (wrong labels).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from nclib.common.options import make
from nclib.common.registry import Entry, Registry

Terms = dict[str, Tensor]
"""Named scalar loss terms, weights included; the loop minimises their sum in one optimiser step."""


class TrainingMethod(ABC):
    """What a method of either task has: options, a paper's settings, diagnostics, state for an exact resume.

    Attributes
    ----------
    Options : type
        Frozen dataclass whose fields are declared with :func:`~nclib.common.options.option`.
    settings : dict of str to dict
        Values of schedule and options that the paper sets, under the name of a data set, under ``"quick"``
        or ``"standard"`` for the preset of that name, or under ``"always"`` for all of these. They override
        the general preset; what the user gives overrides them.
    """

    Options: ClassVar[type]
    settings: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, options: Any) -> None:
        self.options = options

    def diagnostics(self, truth: Any) -> dict[str, float]:
        """Return numbers of the epoch that need the ground truth; they go into the record only."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return everything that :meth:`load_state` needs to continue exactly (tensors and plain data)."""
        return {}

    def load_state(self, loop: Any, state: dict[str, Any]) -> None:  # noqa: B027  most methods have no state
        """Restore what :meth:`state` returned; tensors come from the host."""


def method_registry(kind: str, *bases: type[TrainingMethod]) -> Registry[Any]:
    """Return the registry of the methods of one task, subclasses of ``bases``."""

    def construct(entry: Entry[Any], values: dict[str, Any]) -> Any:
        return entry.factory(make(entry.options, values))

    return Registry(kind, bases, construct)


# ------------------------------------------------------------------------------ what the loops check


def loss_terms(result: object, step: Callable[..., Any]) -> Iterator[Terms]:
    """Yield the loss terms of a step, checked: what it returned, or each of its yields in turn."""
    for terms in result if isinstance(result, Iterator) else [result]:
        yield check_terms(terms, step)


def check_terms(terms: Any, step: Callable[..., Any]) -> Terms:
    """Return the loss terms of an optimiser step; a TypeError unless they are scalars with gradient."""
    values = list(terms.values()) if isinstance(terms, dict) else []
    if not values or not all(isinstance(v, Tensor) and not v.ndim and v.requires_grad for v in values):
        got = {name: _type_text(value) for name, value in terms.items()} if values else _type_text(terms)
        raise TypeError(
            f"{step.__qualname__} gave {got}; it must give named scalar tensors with gradient, such as "
            "{'loss': loss.mean()}"
        )
    return terms


def check_pair_values(values: Any, n: int, caller: str) -> Tensor:
    """Return what a function gave for ``n`` pairs; a TypeError unless it has one row per pair."""
    if not (isinstance(values, Tensor) and values.ndim and len(values) == n):
        raise TypeError(
            f"the function of {caller} gave {_type_text(values)}; it must give a tensor ({n}, ...)"
        )
    return values


def check_plain(value: Any, method: Callable[..., Any], *, tensors: bool = False) -> dict[str, Any]:
    """Return the diagnostics or the state of a method: a dict of plain values, in a state of tensors too.

    A TypeError names the first value that neither a record in JSON nor a checkpoint can hold.
    """
    wrong = _not_plain(value, "", tensors) if isinstance(value, Mapping) else _type_text(value)
    if wrong:
        allowed = "numbers, text, lists, tuples and dicts" + (" of these or tensors" if tensors else "")
        raise TypeError(f"{method.__qualname__} gave {wrong}; it must give a dict of {allowed}")
    return dict(value)


def _not_plain(tree: Any, at: str, tensors: bool) -> str:
    """Return the key and the type of a value that is not plain data, such as ``'a.b' as a set``; or ''."""
    if tree is None or isinstance(tree, (bool, int, float, str)) or (tensors and isinstance(tree, Tensor)):
        return ""
    if not isinstance(tree, (Mapping, list, tuple)):
        return f"{at!r} as {_type_text(tree)}"
    inner: Iterable[tuple[Any, Any]] = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    faults = (_not_plain(value, f"{at}.{key}" if at else str(key), tensors) for key, value in inner)
    return next(filter(None, faults), "")


def _type_text(value: Any) -> str:
    """Return the type of a value in words, of a tensor its shape as well."""
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} {value!r:.40}"
    return f"Tensor {tuple(value.shape)}" + ("" if value.requires_grad else " without gradient")
