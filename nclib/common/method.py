"""Training methods of both tasks: base class, registry, and checks of what an author wrote.

:class:`TrainingMethod` is the base of :class:`nclib.methods.Method` (wrong pairs) and of
:class:`nclib.label_noise.DeepMethod` and :class:`nclib.label_noise.Projector` (wrong labels).
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from nclib.common.options import call_mistake, make
from nclib.common.registry import Registry

Terms = dict[str, Tensor]
"""Named scalar loss terms, weights included; the loop minimises their sum in one optimiser step."""


class TrainingMethod(ABC):
    """What a method of either task has: options, a paper's settings, diagnostics, state for an exact resume.

    Attributes
    ----------
    Options : type
        Frozen dataclass whose fields are declared with :func:`~nclib.common.options.option`.
    settings : dict of str to dict
        Values of schedule and options that the paper sets, under the name of a data set, or under ``"quick"``
        or ``"standard"`` for the preset of that name. They override the general preset; what the user gives
        overrides them.
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


M = TypeVar("M", bound=TrainingMethod)
C = TypeVar("C", bound=type)


class MethodRegistry(Registry[type[M]]):
    """The methods of one task by name, subclasses of ``bases``; a class is checked when it is registered."""

    def __init__(self, kind: str, *bases: type) -> None:
        super().__init__(kind)
        self.bases = bases

    def register(self, name: str, *, summary: str, paper: str = "") -> Callable[[C], C]:
        """Return a class decorator that registers a method; errors as of :func:`nclib.methods.register`."""
        add: Callable[[Any], Any] = super().register(name, summary=summary, paper=paper)

        def check_and_add(cls: C) -> C:
            if not name.isidentifier():
                raise ValueError(f"{self.kind} {name!r}: a name has letters, digits and underscores only")
            _check_class(cls, self.bases, f"{self.kind} {name!r}")
            add(cls)
            return cls

        return check_and_add

    def options(self, name: str) -> type:
        """Return the options dataclass of a method."""
        return self[name].factory.Options

    def settings(self, name: str, key: str) -> dict[str, Any]:
        """Return a copy of a method's settings under ``key``; empty where it has none."""
        return dict(self[name].factory.settings.get(key, {}))

    def create(self, name: str, **values: Any) -> M:
        """Build a method from its options; names and values are checked."""
        cls = self[name].factory
        return cls(make(cls.Options, values))


# ------------------------------------------------------------------------------------ an author's mistakes


def _check_class(cls: Any, bases: tuple[type, ...], what: str) -> None:
    """Raise a TypeError that begins with ``what`` unless a class is a complete method."""
    if not (isinstance(cls, type) and issubclass(cls, bases)):
        allowed = " or ".join(base.__name__ for base in bases)
        raise TypeError(f"{what}: register decorates a subclass of {allowed}, got {cls!r}")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise TypeError(f"{what}: class {cls.__name__} lacks {', '.join(missing)}")
    for name, base in _hooks(cls, bases).items():
        if mistake := call_mistake(cls, name, base):
            raise TypeError(f"{what}: {mistake}")
    options = getattr(cls, "Options", None)
    params = vars(options).get("__dataclass_params__") if isinstance(options, type) else None
    if not isinstance(options, type) or params is None or not params.frozen:
        raise TypeError(f"{what}: Options must be a class with @dataclass(frozen=True), got {options!r}")
    for field in dataclasses.fields(options):
        rule = field.metadata.get("rule")
        if rule is None or not rule.accepts(field.default):
            must = rule.describe() if rule else "must be declared by option(default, help=...)"
            raise TypeError(f"{what}: {options.__name__}.{field.name}, default {field.default!r}: {must}")


def _hooks(cls: type, bases: tuple[type, ...]) -> dict[str, Callable[..., Any]]:
    """Return what the loop calls on a class by name, as its bases in this package define it."""
    owners = [TrainingMethod, *(base for base in bases if issubclass(cls, base))]
    found = {
        name: value for owner in owners for name, value in vars(owner).items() if inspect.isfunction(value)
    }
    return {name: value for name, value in found.items() if name == "__init__" or not name.startswith("_")}


def loss_terms(result: object, step: Callable[..., Any]) -> Iterator[Terms]:
    """Yield the loss terms of a step, checked: what it returned, or each of its yields in turn."""
    for terms in result if isinstance(result, Iterator) else [result]:
        yield check_terms(terms, step)


def check_terms(terms: Any, step: Callable[..., Any]) -> Terms:
    """Return the loss terms of an optimiser step; a TypeError unless they are scalars with gradient."""
    values = list(terms.values()) if isinstance(terms, dict) else []
    if not values or not all(isinstance(v, Tensor) and not v.ndim and v.requires_grad for v in values):
        got = {name: _shown(value) for name, value in terms.items()} if values else _shown(terms)
        raise TypeError(
            f"{step.__qualname__} gave {got}; it must give named scalar tensors with gradient, such as "
            "{'loss': loss.mean()}"
        )
    return terms


def check_pair_values(values: Any, n: int, caller: str) -> Tensor:
    """Return what a function gave for ``n`` pairs; a TypeError unless it has one row per pair."""
    if not (isinstance(values, Tensor) and values.ndim and len(values) == n):
        raise TypeError(f"the function of {caller} gave {_shown(values)}; it must give a tensor ({n}, ...)")
    return values


def check_plain(value: Any, method: Callable[..., Any], *, tensors: bool = False) -> dict[str, Any]:
    """Return the diagnostics or the state of a method: a dict of plain values, in a state of tensors too.

    A TypeError names the first value that neither a record in JSON nor a checkpoint can hold.
    """
    wrong = _not_plain(value, "", tensors) if isinstance(value, Mapping) else _shown(value)
    if wrong:
        allowed = "numbers, text, lists, tuples and dicts" + (" of these or tensors" if tensors else "")
        raise TypeError(f"{method.__qualname__} gave {wrong}; it must give a dict of {allowed}")
    return dict(value)


def _not_plain(tree: Any, at: str, tensors: bool) -> str:
    """Return the key and the type of a value that is not plain data, such as ``'a.b' as a set``; or ''."""
    if tree is None or isinstance(tree, (bool, int, float, str)) or (tensors and isinstance(tree, Tensor)):
        return ""
    if not isinstance(tree, (Mapping, list, tuple)):
        return f"{at!r} as {_shown(tree)}"
    inner: Iterable[tuple[Any, Any]] = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    found = (_not_plain(value, f"{at}.{key}" if at else str(key), tensors) for key, value in inner)
    return next(filter(None, found), "")


def _shown(value: Any) -> str:
    """Return the type of a value in words, of a tensor its shape as well."""
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} {value!r:.40}"
    return f"Tensor {tuple(value.shape)}" + ("" if value.requires_grad else " without gradient")
