"""Registry of named factories: prints as a catalogue, answers an unknown name with the nearest known one."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nclib.common.options import did_you_mean

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """Entry of a registry: name, factory, summary in a few words, paper."""

    name: str
    factory: T
    summary: str
    paper: str


class Catalogue(dict[str, str]):
    """Names and one-line summaries; prints as a table, with ``notes`` on some of them in a third column."""

    def __init__(
        self, entries: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(entries or {})
        self.notes = dict(notes or {})

    def __str__(self) -> str:
        width = max((len(name) for name in self), default=0)
        inner = max((len(text) for name, text in self.items() if name in self.notes), default=0)
        lines = (f"{n:<{width}}  {t:<{inner}}  {self.notes.get(n, '')}".rstrip() for n, t in self.items())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><code>{n}</code></td><td>{t}</td>"
            + (f"<td>{html.escape(self.notes.get(n, ''))}</td>" if self.notes else "")
            + "</tr>"
            for n, t in self.items()
        )
        return f"<table>{rows}</table>"


class Registry(Generic[T]):
    """Named factories of one kind; error messages call it ``"model"``, ``"method"`` or ``"dataset"``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str, *, summary: str, paper: str = "") -> Callable[[T], T]:
        """Return a decorator that registers a factory under ``name``; a name can be taken once.

        A factory of the same module and qualified name replaces its earlier version, so that a cell can run
        again and a module can be reloaded.
        """

        def add(factory: T) -> T:
            here = _where(factory)
            before = _where(self._entries[name].factory) if name in self._entries else here
            if before != here or ("<lambda>" in here and name in self._entries):
                raise ValueError(f"{self.kind} {name!r} is registered twice: by {before} and by {here}")
            self._entries[name] = Entry(name, factory, summary, paper)
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

    def catalogue(self) -> Catalogue:
        """Return ``{name: summary (paper)}``, sorted by name."""
        return Catalogue(
            {n: e.summary + (f" ({e.paper})" if e.paper else "") for n, e in sorted(self._entries.items())}
        )


def _where(factory: Any) -> str:
    return f"{factory.__module__}.{getattr(factory, '__qualname__', factory)}"
