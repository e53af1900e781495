"""A small registry whose entries print as a catalogue and which refuses wrong names helpfully."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One line of a catalogue: what is built, what it is in a few words, and where it comes from."""

    name: str
    factory: T
    summary: str
    paper: str


class Catalogue(dict[str, str]):
    """Names and one-line summaries; prints as a table."""

    def __str__(self) -> str:
        width = max((len(name) for name in self), default=0)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in self.items())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td><code>{n}</code></td><td>{t}</td></tr>" for n, t in self.items())
        return f"<table>{rows}</table>"


class Registry(Generic[T]):
    """Named factories of one kind (``"model"``, ``"method"``, ``"dataset"``).

    Parameters
    ----------
    kind : str
        Word used in error messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str, *, summary: str, paper: str = "") -> Callable[[T], T]:
        """Return a decorator that files a factory under ``name``; a name can be taken once."""

        def add(factory: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = Entry(name, factory, summary, paper)
            return factory

        return add

    def __getitem__(self, name: str) -> Entry[T]:
        if name not in self._entries:
            near = difflib.get_close_matches(str(name), self._entries, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"unknown {self.kind} {name!r}{hint} Available: {', '.join(sorted(self._entries))}."
            )
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def build(self, name: str, *args: Any, **options: Any) -> Any:
        """Call the factory filed under ``name``."""
        return self[name].factory(*args, **options)

    def catalogue(self) -> Catalogue:
        """Return ``{name: summary (paper)}``, sorted by name."""
        return Catalogue(
            {n: e.summary + (f" ({e.paper})" if e.paper else "") for n, e in sorted(self._entries.items())}
        )
