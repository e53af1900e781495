"""Sphinx extension: the tables of recorded runs beside the pages, which link to them from disk."""

from __future__ import annotations

import pathlib
import shutil

from sphinx.application import Sphinx

RESULTS = "book/results"


def copy(app: Sphinx, exception: Exception | None) -> None:
    """Copy the tables of records into the built pages; an event handler of ``build-finished``."""
    if exception is None and app.builder.format == "html":
        source = pathlib.Path(app.srcdir, RESULTS)
        shutil.copytree(source, pathlib.Path(app.outdir, RESULTS), dirs_exist_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
