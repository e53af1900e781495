"""Check built pages: links, files and anchors exist, pictures have alternative text, all without network.

python book/_ext/check_html.py _build/html
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

LOADS = {"script", "img", "iframe", "source", "video", "audio", "embed", "track"}
LOADING_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "prefetch",
    "manifest",
    "shortcut",
    "preconnect",
}
CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+(?!url))["']?([^"')\s;]+)""")
STATIC = "_static"  # holds the theme's templates, which are no pages
FAKE = {"#!", "#"}  # the theme's buttons and page tops


class Page(HTMLParser):
    """Collects what a page links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.unnamed: list[str] = []  # pictures that a screen reader cannot name
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        a = {k: v or "" for k, v in attrs}
        self.ids |= {a[k] for k in ("id", "name") if a.get(k)}
        self._style = tag == "style"
        if tag == "a" and a.get("href"):
            self.links.append(a["href"])
        elif tag == "link" and a.get("href"):
            loading = set(a.get("rel", "").lower().split()) & LOADING_LINKS
            (self.loads if loading else self.links).append(a["href"])
        elif tag in LOADS:
            if tag == "img" and ("alt" not in a or a["alt"] in (a.get("src"), "_images")):
                self.unnamed.append(a.get("src", "")[:60])
            self.loads += [a[k] for k in ("src", "poster") if a.get(k)]
            self.loads += [part.split()[0] for part in a.get("srcset", "").split(",") if part.strip()]
        elif tag == "object" and a.get("data"):
            self.loads.append(a["data"])
        self.loads += CSS_URL.findall(a.get("style", ""))

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += CSS_URL.findall(data)


def is_external(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme in {"http", "https", "ftp"}


class Checker:
    """Checks the pages below one folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder.resolve()
        pages = (
            p for p in sorted(self.folder.rglob("*.html")) if p.relative_to(self.folder).parts[0] != STATIC
        )
        self.pages = {p: Page(p.read_text("utf8")) for p in pages}

    def problems(self) -> Iterator[str]:
        """Yield one line for each thing that is wrong."""
        if not self.pages:
            yield f"{self.folder}: no pages"
        for path, page in self.pages.items():
            name = path.relative_to(self.folder)
            for url in page.loads:
                if is_external(url):
                    yield f"{name}: loads {url} from the network"
                else:
                    yield from self._missing(path, url)
            for source in page.unnamed:
                yield f"{name}: the picture {source} has no alternative text"
            for url in page.links:
                if not is_external(url):
                    yield from self._missing(path, url)
        for path in sorted(self.folder.rglob("*.css")):
            for url in CSS_URL.findall(path.read_text("utf8", errors="replace")):
                if is_external(url):
                    yield f"{path.relative_to(self.folder)}: loads {url} from the network"
        for path in sorted((self.folder / "reports").rglob("*.log")):
            yield f"{path.relative_to(self.folder)}: a notebook failed while the book was built"

    def _missing(self, path: pathlib.Path, url: str) -> Iterator[str]:
        parts = urlsplit(url)
        if url in FAKE or parts.scheme in {"data", "mailto", "javascript", "about"}:
            return
        name = path.relative_to(self.folder)
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.exists():
            yield f"{name}: {url} does not exist"
        elif (
            parts.fragment and target in self.pages and unquote(parts.fragment) not in self.pages[target].ids
        ):
            yield f"{name}: {url} points to an anchor that does not exist"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=pathlib.Path)
    checker = Checker(parser.parse_args(argv).folder)
    found = list(dict.fromkeys(checker.problems()))
    for line in found:
        print(line, file=sys.stderr)
    print(f"check_html: {len(checker.pages)} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
