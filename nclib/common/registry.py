"""The registry of methods, models and data sets: five calls, written once.

Each package has one and offers its calls as functions, such as :func:`nclib.methods.build`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nclib.common.options import Catalogue, Options, did_you_mean, options_of
from nclib.common.source import own_code

T = TypeVar("T", bound=Callable[..., Any])
C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """Entry of a registry: name, factory, summary in a few words, paper."""

    name: str
    factory: T
    summary: str
    paper: str

    @property
    def options(self) -> type[Options]:
        """Options of the factory: the dataclass ``Options`` of a class, the keywords of a function."""
        options: type[Options] = getattr(self.factory, "Options", None) or options_of(self.factory)
        return options


class Registry(Generic[T]):
    """Named factories of one kind.

    Parameters
    ----------
    kind : str
        What error messages call an entry, such as ``"model"``, ``"method"`` or ``"dataset"``.
    bases : tuple of type
        Classes of which an entry must be a subclass; without any, functions are entries too.
    construct : callable, optional
        ``construct(entry, values)`` builds an entry; by default the factory is called with the values.
    """

    def __init__(
        self,
        kind: str,
        bases: tuple[type, ...] = (),
        construct: Callable[[Entry[T], dict[str, Any]], Any] = lambda entry, values: entry.factory(**values),
    ) -> None:
        self.kind = kind
        self._bases, self._construct = bases, construct
        self._entries: dict[str, Entry[T]] = {}

    def available(self) -> Catalogue:
        """Return the entries with their summaries, sorted by name.

        Returns
        -------
        Catalogue
            A dict from name to ``summary (paper)`` that prints as a table.
        """
        return Catalogue(
            {n: e.summary + (f" ({e.paper})" if e.paper else "") for n, e in sorted(self._entries.items())}
        )

    def build(self, name: str, **values: Any) -> Any:
        """Build an entry from its options; those not given keep their defaults.

        Parameters
        ----------
        name : str
            One of ``available()``.
        **values
            Its options, see ``options(name)``.

        Raises
        ------
        ValueError
            For an unknown name, an unknown option, or a value out of range; names what is allowed.
        """
        return self._construct(self[name], values)

    def options(self, name: str) -> type[Any]:
        """Return the options of an entry.

        Parameters
        ----------
        name : str
            One of ``available()``.

        Returns
        -------
        type
            A frozen dataclass; ``options(name).catalogue()`` lists its fields, defaults and allowed values.

        Raises
        ------
        ValueError
            For an unknown name.
        """
        return self[name].options

    def settings(self, name: str, key: str) -> dict[str, Any]:
        """Return the schedule and the options that an entry's own paper sets.

        Parameters
        ----------
        name : str
            One of ``available()``.
        key : str
            Name of a data set, or ``quick`` or ``standard`` for the preset of that name.

        Returns
        -------
        dict
            By name, those under ``always`` among them; empty where the paper says nothing.

        Raises
        ------
        ValueError
            For an unknown name.
        """
        own = getattr(self[name].factory, "settings", {})
        return {**own.get("always", {}), **own.get(key, {})}

    def register(self, name: str, *, summary: str, paper: str = "") -> Callable[[C], C]:
        """Return a decorator that registers a class or function under ``name``, and returns it unchanged.

        From then on runs, tables and the command line know it. One of the same module and qualified name
        replaces its earlier version, so that a cell can run again and a module can be reloaded.

        Parameters
        ----------
        name : str
            For runs and folders; letters, digits and underscores.
        summary : str
            A few words for the catalogue.
        paper : str
            Authors, venue and year.

        Raises
        ------
        TypeError
            By the decorator, for what is not a class of this kind; :mod:`nclib.testing` checks the rest.
        ValueError
            By the decorator, when the name is taken or cannot name a folder.
        """

        def add(factory: C) -> C:
            if not name.isidentifier():
                raise ValueError(f"{self.kind} {name!r}: a name has letters, digits and underscores only")
            if self._bases and not (isinstance(factory, type) and issubclass(factory, self._bases)):
                allowed = " or ".join(base.__name__ for base in self._bases)
                raise TypeError(f"{self.kind} {name!r}: must be a subclass of {allowed}, got {factory!r}")
            here = _where(factory)
            before = _where(self._entries[name].factory) if name in self._entries else here
            if before != here or ("<lambda>" in here and name in self._entries):
                raise ValueError(f"{self.kind} {name!r} is registered twice: by {before} and by {here}")
            entry: Entry[Any] = Entry(name, factory, summary, paper)
            self._entries[name] = entry
            own_code([factory])  # reads its file before it can be edited
            return factory

        return add

    def remove(self, name: str) -> None:
        """Take ``name`` out again, as tests and examples do."""
        del self._entries[self[name].name]

    def __getitem__(self, name: str) -> Entry[T]:
        if name not in self._entries:
            hint = did_you_mean(name, self._entries) or "."
            raise ValueError(
                f"unknown {self.kind} {name!r}{hint} Available: {', '.join(sorted(self._entries))}."
            )
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))


def _where(factory: Any) -> str:
    return f"{factory.__module__}.{getattr(factory, '__qualname__', factory)}"
