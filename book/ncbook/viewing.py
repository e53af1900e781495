"""An executed notebook as one page, or as a notebook that Jupyter shows well.

The sources of the chapters are written for the book: listings are included, citations and links are roles,
captions stand in metadata. Here they become plain Markdown; the page is built as those of the book are.

A notebook may come from a stranger. Of this machine its page holds nothing but files of the book, settings in
its metadata do not count, and a content security policy lets no script run but those of the book's theme.
"""

from __future__ import annotations

import base64
import hashlib
import html
import mimetypes
import re
import secrets
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LISTING = re.compile(r"^```\{literalinclude\} /(?P<path>\S+)\n(?P<options>(?::.*\n)*)```$", re.MULTILINE)
OPTION = re.compile(r"^:([\w-]+): *(.*)$", re.MULTILINE)
DROPDOWN = re.compile(r"^:::\{dropdown\} (?P<title>.+)\n(?P<text>(?:.*\n)*?):::$", re.MULTILINE)
CITATION = re.compile(r"\{cite:\w+\}`([^`]+)`")
ROLE = re.compile(r"\{(?:\w+:)?\w+\}`([^`<]+?)(?: <[^`>]*>)?`")
LABEL = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]*)(#[^)\s]*)?\)")
LOCAL = re.compile(r"""\b(?P<name>href|src)="(?P<path>[^":?#]+)(?:\?[^"#]*)?(?P<place>#[^"]*)?\"""")
URL = re.compile(r"""url\((["']?)(?!data:|#)([^"')?#]+)[^"')]*\1\)""")
EXTENSIONS = (  # those of the book that a page without its book needs
    *("jupyter_book", "myst_nb", "sphinx_design", "sphinx_copybutton", "sphinx_book_theme"),
    *("nb_overlay", "offline_html", "dark_figures", "table_numbers", "confined"),
)
SETTINGS = {"kernelspec", "language_info"}  # metadata of a notebook that its page needs
FIGURE = {"figure": {"caption", "name"}, "image": {"alt", "classes", "width"}}  # so of a cell, in ``mystnb``
ACTION = re.compile(r"""\son\w+="([^"]*)\"""")
POLICY = (
    "default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline' data:; base-uri 'none'; "
    "form-action 'none'; script-src {}"
)


def view(source: Path, out: Path, *, trust: bool = False) -> None:
    """Write an executed notebook as one page, or as a notebook that Jupyter shows well.

    Parameters
    ----------
    source : Path
        A notebook with outputs, such as papermill writes.
    out : Path
        A file to write: ``.html`` for a page that holds all it needs, ``.ipynb`` for a notebook.
    trust : bool
        Whether scripts of the notebook's author may run on the page.

    Raises
    ------
    ValueError
        For a file that is not an executed notebook, for another kind of ``out``, and without the packages
        that build pages.
    """
    if out.suffix not in (".html", ".ipynb"):
        raise ValueError(f"{out}: must end in .html, for a page, or in .ipynb, for a notebook")
    try:
        import jupyter_book  # noqa: F401
        import nbformat
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}: pages are built in the environment of `make env`") from None
    if not source.is_file():
        raise ValueError(f"{source}: there is no such file; give a notebook that papermill wrote")
    try:
        notebook = nbformat.reads(source.read_text("utf8"), 4)
        nbformat.validate(notebook)
    except (nbformat.ValidationError, AttributeError, ValueError):
        raise ValueError(f"{source} is not a notebook") from None
    if not any(cell.get("execution_count") for cell in notebook.cells):
        raise ValueError(f"{source} was not executed; papermill {source} out.ipynb makes an executed copy")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source)
        for output in cell.get("outputs", []):
            if "text/markdown" in (data := output.get("data", {})):
                data["text/markdown"] = plain(data["text/markdown"])
    if out.suffix == ".html":
        out.write_text(page(nbformat.writes(without_settings(notebook)), source.stem, trust=trust), "utf8")
        return
    for cell in notebook.cells:
        caption = cell.metadata.get("mystnb", {}).pop("figure", {}).get("caption")
        if caption and cell.outputs:
            text = {"text/markdown": f"*Figure.* {plain(caption)}"}
            cell.outputs.append(nbformat.v4.new_output("display_data", text))
    nbformat.write(notebook, out)


def without_settings(notebook: Any) -> Any:
    """Remove metadata that tell the builder what to do, such as to execute the notebook, in place."""
    notebook.metadata = {name: value for name, value in notebook.metadata.items() if name in SETTINGS}
    for cell in notebook.cells:
        given, cell.metadata = cell.metadata, {}
        if "tags" in given:
            cell.metadata["tags"] = given["tags"]
        if parts := {
            part: {name: value for name, value in given["mystnb"][part].items() if name in names}
            for part, names in FIGURE.items()
            if part in given.get("mystnb", {})
        }:
            cell.metadata["mystnb"] = parts
    return notebook


def plain(text: str) -> str:
    """Return Markdown of the book as Markdown that every program shows, with listings and citations in it.

    >>> plain("{py:class}`~nclib.methods.l2rm.L2RM` and {ref}`the rows <rows-omit>`")
    '`L2RM` and the rows'
    """
    text = LISTING.sub(_listing, text)
    text = DROPDOWN.sub(r"<details><summary>\g<title></summary>\n\n\g<text>\n</details>", text)
    text = CITATION.sub(lambda match: f"({'; '.join(map(_cited, match[1].split(',')))})", text)
    text = ROLE.sub(lambda match: _named(match[1]), text)
    text = LABEL.sub(r'<a id="\1"></a>', text)
    return LINK.sub(_linked, text)


def _listing(match: re.Match[str]) -> str:
    from sphinx.config import Config
    from sphinx.directives.code import LiteralIncludeReader

    options = {name: value.strip('"') for name, value in OPTION.findall(match["options"])}
    shown = {**options, "dedent": None} if "dedent" in options else options
    path = (ROOT / match["path"]).resolve()
    if not path.is_relative_to(ROOT):
        raise ValueError(
            f"a listing of /{match['path']}: lies outside the book; a page shows files of the book"
        )
    code, _ = LiteralIncludeReader(str(path), shown, Config()).read()
    language = options.get("language", "python")
    return f"```{language}\n{code.rstrip()}\n```\n\n*{options.get('caption', match['path'])}*"


def _cited(key: str) -> str:
    from pybtex.database import parse_file

    entry = parse_file(str(ROOT / "book" / "references.bib")).entries[key.strip()]
    names = [" ".join(person.last_names) for person in entry.persons["author"]]
    who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    return f"{who}, {entry.fields['year']}"


def _named(text: str) -> str:
    """Return what a role shows: the last part of a name of Python, or the text."""
    return f"`{text.rpartition('.')[2]}`" if text.startswith("~") else text


def _linked(match: re.Match[str]) -> str:
    """Return a link to a page of the book where it was built, else its words; labels are on this page.

    As HTML: Markdown shows a link to a file as text.
    """
    words, path, place = match[1], match[2], match[3] or ""
    if re.fullmatch(r"[\w-]+", path):
        return f"[{words}](#{path})"
    built = (ROOT / "_build/html/notebooks" / path).resolve().with_suffix(".html")
    return f'<a href="{built.as_uri()}{place}">{words}</a>' if built.is_file() else words


def page(notebook: str, name: str, *, trust: bool = False) -> str:
    """Return the page of a notebook, built as the pages of the book are, with all files in it."""
    import yaml
    from jupyter_book.sphinx import build_sphinx

    settings = yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))
    markdown = set(settings["parse"]["myst_enable_extensions"]) - {"substitution"}  # which runs templates
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as temporary:
        folder, static = Path(temporary).resolve(), ROOT / "book" / "_static"
        (folder / f"{name}.ipynb").write_text(notebook, "utf8")
        own = {
            "extensions": list(EXTENSIONS),
            "root_doc": name,
            "notebook_secret": secret,
            "myst_enable_extensions": sorted(markdown),
            "html_static_path": [str(static)],
            "html_logo": str(static / "logo.svg"),
            "html_favicon": str(static / "favicon.svg"),
            "html_sidebars": {"**": []},
            "html_copy_source": False,
            "html_use_index": False,
            "html_theme_options": {"use_download_button": False},
            "latex_individualpages": False,
        }
        status = build_sphinx(
            folder,
            folder / "html",
            path_config=ROOT / "_config.yml",
            confoverrides=own,
            use_external_toc=False,
            noconfig=True,
            really_quiet=True,
        )
        if status:
            raise ValueError(f"the page could not be built: {status}")
        path = folder / "html" / f"{name}.html"
        text = re.sub(r'<link [^>]*rel="(?:search|preload)".*', "", path.read_text("utf8"))  # of a book
        return whole(guarded(text, secret, trust=trust), path.parent)


def guarded(text: str, secret: str, *, trust: bool = False) -> str:
    """Return a page with a content security policy; ``secret`` marks the part that its author wrote.

    Scripts outside that part, those of the theme, have the secret as their nonce; its buttons are allowed by
    their digests. With ``trust`` all scripts in the page run. Nothing is ever loaded from elsewhere.
    """
    begin, end = f"<!--notebook {secret}-->", f"<!--end of notebook {secret}-->"
    head, _, rest = text.partition(begin)
    body, _, foot = rest.rpartition(end)
    actions = {html.unescape(action) for part in (head, foot) for action in ACTION.findall(part)}
    hashes = (base64.b64encode(hashlib.sha256(action.encode()).digest()).decode() for action in actions)
    allowed = [f"'nonce-{secret}'", "'unsafe-hashes'", *(f"'sha256-{digest}'" for digest in sorted(hashes))]
    if trust:
        allowed = ["'unsafe-inline'", "data:"]
    else:
        head, foot = (re.sub(r"<script\b", f'<script nonce="{secret}"', part) for part in (head, foot))
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(" ".join(allowed))}">'
    return re.sub(r"<head\b[^>]*>", lambda match: match[0] + policy, head, count=1) + body + foot


def whole(text: str, folder: Path) -> str:
    """Return a page of HTML with the style sheets, scripts and pictures that were built below ``folder``."""

    def inside(match: re.Match[str]) -> str:
        file = (folder / match["path"]).resolve()
        built = file.is_relative_to(folder) and file.is_file()
        return f'{match["name"]}="{data_uri(file, folder)}{match["place"] or ""}"' if built else match[0]

    return LOCAL.sub(inside, text)


def data_uri(path: Path, folder: Path) -> str:
    """Return a file as an address that holds it, with the files that a style sheet names below ``folder``."""
    content = path.read_bytes()

    def inside(match: re.Match[str]) -> str:
        file = (path.parent / match[2]).resolve()
        built = file.is_relative_to(folder) and file.is_file()
        return f'url("{data_uri(file, folder)}")' if built else match[0]

    if path.suffix == ".css":
        content = URL.sub(inside, content.decode()).encode()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
