"""Sphinx extension: pages that open from disk without network.

Removes the scripts of an unused live-code service and repeated scripts.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

UNWANTED = "thebe"


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
    """Let autodoc import the packages from the tree, installed or not."""
    sys.path[:0] = [str(app.srcdir), str(pathlib.Path(app.srcdir, "book"))]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", find_package)
    app.connect("html-page-context", clean, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
