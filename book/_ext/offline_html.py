"""Sphinx extension: pages that open from disk, with the network off, built with or without torch.

Removes the scripts of a live-code service that the book does not use and scripts that are emitted twice; puts
a stand-in for torch where it is not installed, so that building the pages takes the small ``book`` extra.
"""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import sys
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.ext.autodoc.mock import _MockObject, mock

UNWANTED = "thebe"
HEAVY = ("torch", "numpy", "tqdm")


def wanted_scripts(scripts: list[Any]) -> list[Any]:
    """Return the scripts of a page without unwanted and repeated ones."""
    seen: set[str] = set()
    keep = []
    for script in scripts:
        body = str((getattr(script, "attributes", {}) or {}).get("body") or "")
        name = str(getattr(script, "filename", script) or "")
        if UNWANTED in name.lower() or UNWANTED in body.lower() or (body and body in seen):
            continue
        seen.add(body)
        keep.append(script)
    return keep


def clean(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    context["script_files"][:] = wanted_scripts(context["script_files"])
    context["css_files"][:] = [
        c for c in context["css_files"] if UNWANTED not in str(getattr(c, "filename", c)).lower()
    ]


def find_package(app: Sphinx, config: Config) -> None:
    """Let autodoc import nclib from the tree, installed or not."""
    sys.path.insert(0, str(pathlib.Path(app.srcdir)))
    missing = [name for name in HEAVY if importlib.util.find_spec(name) is None]
    config.autodoc_mock_imports = missing
    if missing:  # type aliases such as ``Tensor | ndarray`` are computed on import
        for operator in ("__or__", "__ror__"):
            setattr(_MockObject, operator, lambda self, other: self)
        with mock(missing):  # nclib finds its parts on first use, later than the stand-ins last
            importlib.import_module("nclib.runs.pairs")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", find_package)
    app.connect("html-page-context", clean, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
