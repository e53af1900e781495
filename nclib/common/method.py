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

from nclib.common.options import Rule, call_mistake, make
from nclib.common.registry import Registry

SUCH_BATCHES = "loop.batches(purpose='pairs')"

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
        method = cls(make(cls.Options, values))
        if not hasattr(method, "options"):
            raise TypeError(
                f"{self.kind} {name!r}: {cls.__name__}.__init__ must call super().__init__(options) first"
            )
        return method


# ------------------------------------------------------------------------------------ an author's mistakes


def _check_class(cls: Any, bases: tuple[type, ...], what: str) -> None:
    """Raise a TypeError that begins with ``what`` unless a class is a complete method."""
    if not (isinstance(cls, type) and issubclass(cls, bases)):
        allowed = " or ".join(base.__name__ for base in bases)
        raise TypeError(f"{what}: register decorates a subclass of {allowed}, got {cls!r}")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise TypeError(f"{what}: class {cls.__name__} lacks {', '.join(missing)}")
    for name, base in _hooks(cls, bases).items():
        if mistake := call_mistake(cls, name, base):
            raise TypeError(f"{what}: {mistake}")
    options = getattr(cls, "Options", None)
    if options is None:
        raise TypeError(
            f"{what}: class {cls.__name__} has no Options; give it a frozen dataclass of option(...) fields"
        )
    params = vars(options).get("__dataclass_params__") if isinstance(options, type) else None
    if params is None or not params.frozen:
        raise TypeError(f"{what}: Options must be a class with @dataclass(frozen=True), got {options!r}")
    for field in dataclasses.fields(options):
        rule = field.metadata.get("rule")
        if isinstance(getattr(field.default, "rule", None), Rule):
            package = bases[0].__module__.rpartition(".")[0]
            raise TypeError(
                f"{what}: {options.__name__}.{field.name} is declared with the option(...) of models; "
                f"write from {package} import option"
            )
        if rule is None:
            kind = getattr(field.type, "__name__", field.type)
            raise TypeError(
                f"{what}: {options.__name__}.{field.name} is declared without option(...); "
                f"write {field.name}: {kind} = option(default, help=...)"
            )
        if not rule.accepts(field.default):
            default = f"default {field.default!r}"
            raise TypeError(f"{what}: {options.__name__}.{field.name}, {default}: {rule.describe()}")


def _hooks(cls: type, bases: tuple[type, ...]) -> dict[str, Callable[..., Any]]:
    """Return what the loop calls on a class by name, as its bases in this package define it."""
    owners = [TrainingMethod, *(base for base in bases if issubclass(cls, base))]
    found = {
        name: value for owner in owners for name, value in vars(owner).items() if inspect.isfunction(value)
    }
    return {name: value for name, value in found.items() if name == "__init__" or not name.startswith("_")}


def check_steps(items: Any, begin_epoch: Callable[..., Any]) -> Iterable[Any]:
    """Return what ``begin_epoch`` returned, one item per step, after a check.

    A TypeError says when it is not iterable, a dict, or a tensor of indices, a ValueError when it is an empty
    list: a method that has nothing to train in an epoch returns batches without pairs.
    """
    what = f"{begin_epoch.__qualname__} returned"
    if isinstance(items, Mapping):
        raise TypeError(f"{what} {_kind(items)}; it must return batches, such as {SUCH_BATCHES}")
    if isinstance(items, Tensor) and not (items.is_floating_point() or items.is_complex()):
        raise TypeError(
            f"{what} indices, a tensor of {items.dtype}; it must return loop.batches(index, purpose='pairs')"
        )
    if not isinstance(items, Iterable):
        raise TypeError(
            f"{what} {_kind(items)}; it must return what step receives, one item per step, "
            f"such as {SUCH_BATCHES}"
        )
    if isinstance(items, (list, tuple)) and not items:
        raise ValueError(f"{what} no steps, {items!r}; it must return batches, such as {SUCH_BATCHES}")
    return items


def loss_terms(result: object, step: Callable[..., Any]) -> Iterator[Terms]:
    """Yield the loss terms of a step, checked: what it returned, or each of its yields in turn."""
    if isinstance(result, Iterator):  # a step that is written with yield
        for terms in result:
            yield check_terms(terms, step, "yielded")
    else:
        yield check_terms(result, step)


def check_terms(terms: Any, step: Callable[..., Any], verb: str = "returned") -> Terms:
    """Return the loss terms of one optimiser step, after a check; ``verb`` is for the messages.

    A TypeError says when they are not a dict of tensors, a ValueError when there is none, or one is not a
    scalar or has no gradient.
    """
    what, must = f"{step.__qualname__} {verb}", f"it must {'yield' if verb == 'yielded' else 'return'}"
    if not isinstance(terms, dict):
        raise TypeError(f"{what} {_kind(terms)}; {must} a dict of loss terms, such as {{'loss': loss}}")
    if not terms:
        raise ValueError(f"{what} an empty dict; {must} at least one loss term")
    for name, value in terms.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{what} term {name!r} as {_kind(value)}; it must be a scalar tensor")
        if value.ndim:
            raise ValueError(f"{what} term {name!r} with shape {tuple(value.shape)}, reduce it: .mean()")
        if not value.requires_grad:
            raise ValueError(f"{what} term {name!r} without gradient; is it detached or made under no_grad?")
    return terms


def check_pair_values(values: Any, n: int, caller: str) -> Tensor:
    """Return what a function gave for a batch of ``n`` pairs, one row per pair, after a check."""
    must = "it must return one value per pair"
    if not isinstance(values, Tensor):
        raise TypeError(f"the function of {caller} returned {_kind(values)}; {must}, a tensor ({n},)")
    if not values.ndim:
        raise ValueError(f"the function of {caller} returned a scalar for {n} pairs; {must}, without .mean()")
    if len(values) != n:
        got = tuple(values.shape)
        raise ValueError(f"the function of {caller} returned shape {got} for {n} pairs; {must}, ({n}, ...)")
    return values


def check_report(report: Any, diagnostics: Callable[..., Any]) -> dict[str, Any]:
    """Return the diagnostics of an epoch after a check: a dict of plain values, for a record in JSON."""
    what = f"{diagnostics.__qualname__} returned"
    if not isinstance(report, dict):
        raise TypeError(f"{what} {_kind(report)}; it must return a dict of numbers, which may be empty")
    if wrong := _not_plain(report, tensors=False):
        raise TypeError(f"{what} {wrong}; it must be a number, such as float(...)")
    return report


def check_state(state: Any, method: Callable[..., Any]) -> dict[str, Any]:
    """Return a method's state after a check: a dict of tensors and plain data, as a checkpoint holds them."""
    what = f"{method.__qualname__} returned"
    if not isinstance(state, Mapping):
        raise TypeError(f"{what} {_kind(state)}; it must return a dict, which may be empty")
    if wrong := _not_plain(state):
        raise TypeError(f"{what} {wrong}; it must be a tensor, number, text, list, tuple or dict of these")
    return dict(state)


def _not_plain(tree: Any, at: str = "", *, tensors: bool = True) -> str:
    """Return the key and the type of a value that is not plain data, such as ``'a.b' as a set``; or ''."""
    if tree is None or isinstance(tree, (bool, int, float, str)) or (tensors and isinstance(tree, Tensor)):
        return ""
    if not isinstance(tree, (Mapping, list, tuple)):
        return f"{at!r} as {_kind(tree)}"
    inner: Iterable[tuple[Any, Any]] = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    found = (_not_plain(value, f"{at}.{key}" if at else str(key), tensors=tensors) for key, value in inner)
    return next(filter(None, found), "")


def _kind(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
