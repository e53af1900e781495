"""WebDataset: tars whose neighbouring files of one name are a picture and its captions."""

from __future__ import annotations

import io
import json
import tarfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from nclib.common.files import digest
from nclib.data.pictures import SUFFIXES, UnreadableError
from nclib.data.readers.listing import (
    ID_COLUMNS,
    Hints,
    Listing,
    Rows,
    caption_columns,
    find_column,
    plain_name,
    spread,
)

LONGEST_FILE = 1 << 20  # bytes of a caption or its .json; longer ones are left out
NO_PICTURE = "no picture has this key"
Place = tuple[int, int]  # first byte and bytes


def is_tars(source: Any) -> bool:
    """Whether a source is a tar, or a folder that holds some."""
    if not isinstance(source, Path):
        return False
    return any(source.glob("*.tar")) if source.is_dir() else source.suffix == ".tar" and source.is_file()


@dataclass
class _Sample:
    """Files of one key in a tar: where its picture lies, and its captions."""

    key: str
    picture: Place | None = None
    texts: list[Any] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def read_tars(source: Path, hints: Hints) -> Listing:
    """List the pairs of a tar, or of all tars in a folder."""
    paths = sorted(source.glob("*.tar")) if source.is_dir() else [source]
    places: dict[str, tuple[Path, Place | None]] = {}
    texts: list[Any] = []
    names: list[str] = []
    facts: list[dict[str, Any]] = []
    problems: dict[int, str] = {}
    for path in paths:
        for sample in _samples(path, hints):
            name = f"{path}/{sample.key}"
            while name in places:  # a key that occurs again
                name += "'"
            places[name] = path, sample.picture
            for text in sample.texts or [""]:
                if sample.problem or sample.picture is None:
                    problems[len(texts)] = sample.problem or NO_PICTURE
                texts.append(text)
                names.append(name)
                facts.append({"shard": path.name, **sample.facts, "key of the sample": sample.key})
    others = pd.DataFrame(facts)
    ids = others.pop("key of the sample")
    if (given := find_column(others.columns, ID_COLUMNS)) is not None:
        ids = others.pop(given).where(lambda found: found.notna(), ids)
    origin = digest(repr([(p.stat().st_size, p.stat().st_mtime_ns) for p in paths]))

    def file(name: str) -> io.BytesIO:
        path, place = places[name]
        if place is None:
            raise UnreadableError(NO_PICTURE)
        with path.open("rb") as opened:
            opened.seek(place[0])
            return io.BytesIO(opened.read(place[1]))

    return Rows(texts, names, ids.tolist(), columns=others, problems=problems).listing(file, origin)


def _samples(path: Path, hints: Hints) -> Iterator[_Sample]:
    """Yield the samples of a tar: neighbouring files whose names agree up to the first dot."""
    # Only headers and captions are read, and no name of a member is ever used as a path.
    now: _Sample | None = None
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                head, _, name = member.name.rpartition("/")
                stem, dot, kind = name.partition(".")
                if not (member.isreg() and stem and dot) or member.issparse():
                    continue
                key = f"{head}/{stem}" if head else stem
                if now is None or now.key != key:
                    if now is not None:
                        yield now
                    now = _Sample(key)
                _add(now, tar, member, f".{kind.lower()}", hints)
            # The library takes the first header that it cannot read for the end.
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError(f"no end is marked at byte {tar.offset:,}")
    except tarfile.ReadError as error:
        if now is None:
            raise ValueError(
                f"{path} cannot be read as a tar file; unpack a compressed one first ({error})"
            ) from error
        warnings.warn(
            f"{path} is damaged or cut off ({error}); the pairs before are read", UserWarning, stacklevel=2
        )
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error})") from error
    if now is not None:
        yield now


def _add(sample: _Sample, tar: tarfile.TarFile, member: tarfile.TarInfo, kind: str, hints: Hints) -> None:
    """Note a file of a sample."""
    if kind in SUFFIXES:
        sample.picture = member.offset_data, member.size
    elif kind in (".txt", ".json"):
        if member.size > LONGEST_FILE:
            sample.problem = f"{kind} has {member.size:,} bytes, too many for a caption"
            return
        content = tar.extractfile(member)
        assert content is not None  # a regular file
        _add_text(sample, content.read(), kind, hints)


def _add_text(sample: _Sample, content: bytes, kind: str, hints: Hints) -> None:
    if kind == ".txt":
        try:  # goes before a caption in the .json, unless its column is named
            if hints.caption_column is None:
                sample.texts = [content.decode(hints.encoding or "utf-8-sig")]
        except UnicodeDecodeError:
            sample.problem = f"the caption is not {hints.encoding or 'UTF-8'}"
        return
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError):
        sample.problem = sample.problem or ("" if sample.texts else "the .json is damaged")
        return
    if isinstance(facts, dict):
        column = find_column(facts, (plain_name(hints.caption_column or ""),))
        columns = [column] if column else caption_columns(list(facts))
        sample.facts = {
            k: v for k, v in facts.items() if k not in columns and not isinstance(v, (list, dict))
        }
        if not sample.texts and columns:
            sample.texts = spread([[facts[column] for column in columns]])[1]
