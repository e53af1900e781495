"""Checked options: frozen dataclasses whose fields declare their allowed values."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")

_NOTEBOOK_NAMES = frozenset({"In", "Out", "exit", "quit", "open", "get_ipython"})


@dataclasses.dataclass(frozen=True)
class Rule:
    """Allowed values of an option: type, limits or choices, and help in one sentence."""

    kind: type
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: tuple[Any, ...] | None = None
    help: str = ""

    def describe(self) -> str:
        """Return the allowed values in words."""
        if self.choices is not None:
            return "must be one of " + ", ".join(repr(c) for c in self.choices)
        if self.kind is bool:
            return "must be True or False"
        if self.kind is str:
            return "must be text"
        word = "a whole number" if self.kind is int else "a number"
        limits = []
        if self.above is not None:
            limits.append(f"above {_shown(self.above)}")
        if self.low is not None:
            limits.append(f"at least {_shown(self.low)}")
        if self.high is not None:
            limits.append(f"at most {_shown(self.high)}")
        return f"must be {word}" + (", " + " and ".join(limits) if limits else "")

    def about(self) -> str:
        """Return the help, and the allowed values where they say more than the type of a text."""
        allowed = "" if self.choices is None and self.kind in (str, object) else self.describe()
        return "; ".join(filter(None, (self.help, allowed.removeprefix("must be ")))) or "text"

    def accepts(self, value: object) -> bool:
        """Return whether ``value`` has the right type and lies in range."""
        if isinstance(value, bool) != (self.kind is bool):
            return False
        if self.kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, self.kind):
            return False
        if self.choices is not None and value not in self.choices:
            return False
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return (
                math.isfinite(value)
                and (self.low is None or value >= self.low)
                and (self.high is None or value <= self.high)
                and (self.above is None or value > self.above)
            )
        return True


def _shown(limit: float) -> str:
    """Return a limit as text, a whole number with all its digits."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def option(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Iterable[Any] | None = None,
    help: str = "",
) -> Any:
    """Declare a dataclass field together with its allowed values.

    Parameters
    ----------
    default : bool, int, float or str
        Decides the type; whole numbers are accepted where it is a float.
    low, high : float, optional
        Smallest and largest value.
    above : float, optional
        Bound that a value must exceed.
    choices : iterable, optional
        All allowed values.
    help : str
        Meaning in one sentence, as ``nclib run METHOD --help`` shows it.

    Returns
    -------
    dataclasses.Field
        With the rule in its metadata.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Options:
    ...     tau: float = option(0.05, above=0, help="temperature")
    >>> make(Options, {"tau": -1})
    Traceback (most recent call last):
    ValueError: bad parameters: tau=-1: must be a number, above 0
    """
    rule = Rule(type(default), low, high, above, tuple(choices) if choices is not None else None, help)
    return dataclasses.field(default=default, metadata={"rule": rule})


def rules(cls: type) -> dict[str, Rule]:
    """Return the rules of a dataclass made with :func:`option`, in order of declaration."""
    return {f.name: f.metadata["rule"] for f in dataclasses.fields(cls) if "rule" in f.metadata}


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` with the nearest known name, or an empty text without a similar one.

    Examples
    --------
    >>> did_you_mean("mrat", ["mrate", "seed"])
    "; did you mean 'mrate'?"
    """
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def problems(values: Mapping[str, Any], allowed: Mapping[str, Rule]) -> list[str]:
    """List, one sentence each, unknown names, with the nearest known one, and values that are not allowed."""
    found = []
    for name, value in values.items():
        if name not in allowed:
            found.append(f"unknown parameter {name!r}{did_you_mean(name, allowed)}")
        elif not allowed[name].accepts(value):
            found.append(f"{name}={value!r}: {allowed[name].describe()}")
    return found


def make(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build a frozen dataclass of :func:`option` fields; those that are not given keep their defaults.

    Raises
    ------
    ValueError
        Naming each unknown parameter and each value out of range, with what is allowed.
    """
    allowed = rules(cls)
    found = problems(values, allowed)
    if found:
        raise ValueError("bad parameters: " + "; ".join(found))
    return cls(**{k: allowed[k].kind(v) for k, v in values.items()})


def signature(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function or class by name, with hints as types if they can be evaluated."""
    try:
        return inspect.signature(factory, eval_str=True).parameters
    except Exception:  # of a hint that is imported for type checkers only, whatever evaluating it raises
        return inspect.signature(factory).parameters


def call_mistake(cls: type, name: str, base: Callable[..., Any]) -> str:
    """Return, in one line, how a class's method must be written to take the arguments of ``base``.

    Empty if it takes them. A keyword argument ``chunk`` may be left out: nothing outside a model passes it.
    """
    pattern = inspect.signature(base)
    plain = [p.replace(annotation=p.empty) for p in pattern.parameters.values()]
    wanted = pattern.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    raw = inspect.getattr_static(cls, name)
    found = getattr(raw, "__func__", raw)
    write = f"write def {name}{wanted}"
    if not callable(found):
        return f"{cls.__name__}.{name} is not a function; {write}"
    given = [p.name for p in plain if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = {p.name: None for p in plain if p.kind is p.KEYWORD_ONLY and p.name != "chunk"}
    try:
        own = inspect.signature(found)
    except (TypeError, ValueError):  # of a callable that cannot be looked into
        return ""
    try:
        own.bind(*given[isinstance(raw, staticmethod) :], **named)
    except TypeError:
        own = own.replace(
            parameters=[p.replace(annotation=p.empty) for p in own.parameters.values()],
            return_annotation=own.empty,
        )
        return f"{cls.__name__}.{name} takes {own}; {write}"
    return ""


def misfits(values: Mapping[str, Any], allowed: Mapping[str, inspect.Parameter]) -> list[str]:
    """List in one sentence each the arguments that do not fit the type hints of their parameters.

    Plain types, paths, literals, None and unions of them are checked; other hints allow everything. Names
    that are not in ``allowed``, which is as :func:`signature` returns it, are skipped.
    """
    return [
        f"{name}={value!r}: {said}"
        for name, value in values.items()
        if name in allowed and (said := _misfit(value, allowed[name]))
    ]


def _misfit(value: object, parameter: inspect.Parameter) -> str:
    hint = parameter.annotation
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    none = parameter.default is None or types.NoneType in parts
    allowed = [_rule(part) for part in parts if part is not types.NoneType]
    if (none and value is None) or any(rule is None or rule.accepts(value) for rule in allowed):
        return ""
    words = [rule.describe().removeprefix("must be ") for rule in allowed if rule is not None]
    if any(map(_is_path, parts)):
        words = ["a path as text, such as './2024' for a folder of that name"]
    return "must be " + " or ".join(["None"] * none + words)


def path_names(allowed: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of the parameters whose type hints allow a path, as :func:`signature` returns them."""
    found = []
    for name, parameter in allowed.items():
        hint = parameter.annotation
        if any(map(_is_path, get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,))):
            found.append(name)
    return found


def _rule(hint: Any) -> Rule | None:
    """Return the rule of a type hint; None where every value may fit."""
    if get_origin(hint) is Literal:
        return Rule(type(get_args(hint)[0]), choices=get_args(hint))
    if _is_path(hint):
        return Rule(str)
    return Rule(hint) if hint in (bool, int, float, str) else None


def _is_path(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, os.PathLike)


def plain_values(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values in a notebook's namespace: in its first cell these are its parameters.

    Names that start with an underscore or that Jupyter sets are left out.
    """
    plain = (bool, int, float, str, list, dict, tuple, set, type(None))
    return {
        k: v
        for k, v in namespace.items()
        if not k.startswith("_") and k not in _NOTEBOOK_NAMES and isinstance(v, plain)
    }
