"""A request for a run: what names it, and the one comparison that says whether a record answers it.

A record answers where its settings name the same run, its data have the same checksum, code of the user's is
the same, and its numbers did not move since. Whatever gives a stored run in place of a new one asks here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nclib import data
from nclib.common.files import digest
from nclib.runs.identity import NUMERICS, naming, since
from nclib.runs.record import Record

DATA_PART, CODE_PART = "data.checksum", "environment.own_code"  # of what :meth:`Request.unlike` returns


def checksum(dataset: str, data_options: str) -> str | None:
    """Return the checksum of data, options as JSON; None where they are not there, or cannot be read."""
    try:
        return str(data.load(dataset, **json.loads(data_options)).checksum)
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Request:
    """A run that is asked for.

    Parameters
    ----------
    settings : mapping
        As :meth:`nclib.runs.Settings.flat` gives them.
    own_code : str
        Digest of code of the user's; empty without any.
    checksum : callable
        Returns the checksum of the data by name and options; called where all else agrees: data may be large.
    content : str
        Digest of all files of the data, where they are loaded: the checksum may leave out rounding of
        another machine.
    """

    settings: Mapping[str, Any]
    own_code: str = ""
    checksum: Callable[[str, str], str | None] = checksum
    content: str = ""

    @functools.cached_property
    def data(self) -> str | None:
        """Checksum of the data; None where they are not there, and then it is not compared."""
        options = json.dumps(self.settings.get("data_options", {}), sort_keys=True)
        return self.checksum(self.settings["dataset"], options)

    @functools.cached_property
    def naming(self) -> dict[str, Any]:
        """The settings that name the run, as JSON gives them back."""
        named: dict[str, Any] = json.loads(json.dumps(naming(self.settings)))
        return named

    @property
    def digest(self) -> str:
        """Digest of what decides the numbers of the run; data that are not there count by their options."""
        return self._digest(self.data or self.settings.get("data_options"))

    @functools.cached_property
    def fingerprint(self) -> str:
        """First 16 digits of a digest of what decides the numbers, the content of the data among it."""
        return self._digest(self.content)[:16]

    def _digest(self, data: Any) -> str:
        number = moved_at(self.settings)
        return digest(json.dumps([self.naming, data, number, self.own_code], sort_keys=True))

    @property
    def code(self) -> dict[str, Any]:
        """What a record states: ``numerics``, and ``own_code`` where a run has code of the user's."""
        return {"numerics": NUMERICS} | ({"own_code": self.own_code} if self.own_code else {})

    def unlike(self, content: Mapping[str, Any]) -> list[str]:
        """Return in what a record differs from what is asked, by name; empty where it answers.

        Parameters
        ----------
        content : mapping
            Of a record: ``settings``, with the parameters that came since, ``data`` and ``environment``.

        Returns
        -------
        list of str
            Settings; else one of :data:`CODE_PART`, the number of the numerics in words, :data:`DATA_PART`.
        """
        there, asked = self._named(content["settings"])
        if other := [k for k in {**asked, **there} if there.get(k) != asked.get(k)]:
            return other
        if content["environment"].get("own_code", "") != self.own_code:
            return [CODE_PART]
        if older := outdated(self.settings, content["environment"].get("numerics", 1)):
            return [older]
        return [DATA_PART] * (self.data not in (None, content["data"].get("checksum")))

    def check(self, record: Record, name: str) -> None:
        """Raise a ValueError unless a record answers, and has this name."""
        if other := self.unlike(vars(record)) or ["name"] * (record.name != name):
            raise ValueError(
                f"{Path(record.folder) / 'record.json'} is the record of another run, {record.name}: "
                f"it differs in {', '.join(other)}"
            )

    def _named(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings that name a record and the request; files by their digests, if it knows any."""
        if self.settings.get("files_sha256"):
            return naming(settings), self.naming
        asked = dict(self.naming)
        for part, names in settings.get("files_sha256", {}).items():
            own = asked.get(part) or {}
            asked[part] = own | {name: Path(own[name]).name for name in names if own.get(name)}
        return naming({k: v for k, v in settings.items() if k != "files_sha256"}), asked


def moved_at(settings: Mapping[str, Any]) -> int:
    """Return the number of the numerics since which runs with these settings have their present numbers."""
    return since(method=settings["method"], model=settings.get("model") or "")


def outdated(settings: Mapping[str, Any], made: int) -> str:
    """Say why a record made under a number of the numerics holds other numbers than its run; empty if not."""
    now = moved_at(settings)
    if made < now:
        return f"numerics {made}, its numbers moved at {now}"
    return f"numerics {made}, this version knows {NUMERICS}" if made > NUMERICS else ""
