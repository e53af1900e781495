"""Sphinx extension: read and write the pages in as many processes as there are cores.

``jupyter-book build`` has no option for it. Sphinx reads in one process alone while an extension does not say
that parallel reading is safe. Two do not, though neither does anything when a page is read: one numbers the
sections, which the first process does when all pages are read, the other is for LaTeX.
"""

from __future__ import annotations

import os

from sphinx.application import Sphinx

SAFE = ("sphinx_multitoc_numbering", "sphinx_jupyterbook_latex")


def declare(app: Sphinx) -> None:
    """Declare :data:`SAFE` safe; an event handler of ``builder-inited``."""
    for name in SAFE:
        if extension := app.extensions.get(name):
            extension.parallel_read_safe = True


def setup(app: Sphinx) -> dict[str, bool]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    app.parallel = max(app.parallel, cores)
    app.connect("builder-inited", declare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
