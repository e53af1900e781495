"""Sphinx extension: the page of a stranger's notebook holds no file of this machine.

* Directives read no files, and pictures and downloads outside the folder that is built are left out.
* What a notebook says is marked with a secret of the build, so that ``ncbook view`` tells it from the theme.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

log = logging.getLogger(__name__)
BEGIN, END = "<!--notebook {}-->", "<!--end of notebook {}-->"


def read_no_files(app: Sphinx) -> None:
    """Let no directive read a file; an event handler of ``builder-inited``."""
    app.env.settings["file_insertion_enabled"] = False


def confine(app: Sphinx, doctree: nodes.document) -> None:
    """Remove what names other files, and HTML in headings; an event handler of ``doctree-read``."""
    here = Path(app.srcdir).resolve()
    for node in [*doctree.findall(nodes.image), *doctree.findall(addnodes.download_reference)]:
        name = node.get("uri") or node.get("reftarget", "")
        if ":" in name.partition("/")[0]:  # an address
            continue
        path = Path(app.env.relfn2path(name, app.env.docname)[1]).resolve()
        if not path.is_relative_to(here):
            log.warning("left out: %s lies outside the notebook's page", name, location=node)
            node.replace_self(nodes.inline("", f"[{name}]"))
    for title in doctree.findall(nodes.title):
        for raw in list(title.findall(nodes.raw)):  # the contents beside the page repeat it
            raw.replace_self([])


def mark(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Mark the notebook's part of a page; an event handler of ``html-page-context``."""
    secret = app.config.notebook_secret
    context["metatags"] = ""
    if "body" in context:
        context["body"] = BEGIN.format(secret) + context["body"] + END.format(secret)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("notebook_secret", "", "html")
    app.connect("builder-inited", read_no_files)
    app.connect("doctree-read", confine, priority=100)  # before Sphinx collects titles and pictures
    app.connect("html-page-context", mark, priority=999)
    return {"parallel_read_safe": True}
