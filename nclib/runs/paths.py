"""Paths of one machine among settings: of data, noise and other files. A file beside a record keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nclib.common.files import write_atomically

FILE = "places.json"  # beside a record, which leaves them out
DATA = ("root", "pairs", "images", "image_emb")
"""Options of data sets that are paths, of files that the checksum of the data covers."""


def path_options(settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the options that may be paths, by the mapping in which they stand."""
    files = {part: tuple(named) for part, named in settings.get("files_sha256", {}).items()}
    return {**files, "data_options": (*DATA, *files.get("data_options", ()))}


def paths_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are absolute paths or exist here, as absolute paths.

    Names of networks in the hub's cache are not among them.
    """
    result: dict[str, Any] = {}
    for part, names in path_options(settings).items():
        options = settings.get(part) or {}
        paths = {k: Path(str(options[k])).expanduser() for k in names if options.get(k)}
        result[part] = {k: str(v.absolute()) for k, v in paths.items() if v.is_absolute() or v.exists()}
    if settings.get("noise_file"):
        result["noise_file"] = str(Path(settings["noise_file"]).expanduser().absolute())
    return {part: paths for part, paths in result.items() if paths}


def without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a record stores them: the names of files alone, and no folder of the data."""
    result = dict(settings)
    for part, paths in paths_of(settings).items():
        if part == "noise_file":
            result[part] = Path(paths).name
        else:
            rest = {k: v for k, v in settings[part].items() if k not in paths or k not in DATA}
            result[part] = {k: Path(v).name if k in paths else v for k, v in rest.items()}
    return result


def with_paths(settings: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with paths of :func:`paths_of` in the places of those that they name."""
    own = {k: {**settings[k], **v} if isinstance(v, dict) else v for k, v in paths.items() if k in settings}
    return {**settings, **own}


def write_paths(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write the paths among settings into a folder where possible; return them.

    They are absolute: a run that was started from another folder is opened all the same.
    """
    paths, file = paths_of(settings), folder / FILE
    with suppress(OSError):  # finished runs in a folder that only others can write
        if paths and not (file.is_file() and file.read_text("utf8") == json.dumps(paths)):
            write_atomically(file, json.dumps(paths))
    return paths


def read_paths(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the paths that :func:`write_paths` wrote, those alone that such settings may have."""
    try:
        given = json.loads((folder / FILE).read_text("utf8"))
        names = path_options(settings)
        paths = {k: {n: str(given[k][n]) for n in names[k] if n in given[k]} for k in names if k in given}
        noise = {"noise_file": str(given["noise_file"])} if given.keys() & {"noise_file"} else {}
        return paths | (noise if settings.get("noise_file") else {})
    except (OSError, ValueError, TypeError, AttributeError):  # no such file, or no mapping of mappings
        return {}
