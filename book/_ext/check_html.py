"""Check built pages without network: ``python book/_ext/check_html.py _build/html``.

Every link, file and anchor must exist, no anchor may stand twice on a page, every picture needs alternative
text, and no page may load anything from another host.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+(?!url))["']?([^"')\s;]+)""")
LINKS_THAT_LOAD = re.compile(r"stylesheet|icon|preload|prefetch|manifest|preconnect")
NO_TARGETS = {"#", "#!"}  # the theme's buttons


class Page(HTMLParser):
    """Anchors of a page, those there twice, what it links to and loads, pictures without alternative text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.twice: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.unnamed: list[str] = []
        self.feed(text)
        for style in re.findall(r"<style.*?</style>", text, re.DOTALL):
            self.loads += CSS_URL.findall(style)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        a = {k: v or "" for k, v in attrs}
        if a.get("id") in self.ids:
            self.twice.append(a["id"])
        self.ids |= {a[k] for k in ("id", "name") if a.get(k)}
        if a.get("href"):
            loads = tag == "link" and LINKS_THAT_LOAD.search(a.get("rel", "").lower())
            (self.loads if loads else self.links).append(a["href"])
        if tag == "img" and a.get("alt", a.get("src")) in (a.get("src"), "_images"):
            self.unnamed.append(a.get("src", "")[:60])
        self.loads += [a[k] for k in ("src", "poster", "data") if a.get(k)]
        self.loads += [part.split()[0] for part in a.get("srcset", "").split(",") if part.strip()]
        self.loads += CSS_URL.findall(a.get("style", ""))


def is_external(url: str) -> bool:
    """Return whether a URL leads to another host."""
    return bool(urlsplit(url).netloc) or urlsplit(url).scheme in {"http", "https", "ftp"}


def problems(folder: pathlib.Path) -> Iterator[str]:
    """Yield one line for each thing that is wrong with the pages below a folder."""
    folder = folder.resolve()
    files = [path for path in sorted(folder.rglob("*.html")) if folder / "_static" not in path.parents]
    pages = {path: Page(path.read_text("utf8")) for path in files}
    if not pages:
        yield f"{folder}: no pages"
    for path, page in pages.items():
        name = path.relative_to(folder)
        yield from (f"{name}: loads {url} from the network" for url in page.loads if is_external(url))
        yield from (f"{name}: the picture {source} has no alternative text" for source in page.unnamed)
        yield from (f"{name}: the anchor {anchor} stands there twice" for anchor in page.twice)
        for url in dict.fromkeys(url for url in [*page.links, *page.loads] if not is_external(url)):
            parts = urlsplit(url)
            if url in NO_TARGETS or parts.scheme:  # mailto:, data:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{name}: {url} does not exist"
            elif name.parts[0] == "_modules":
                continue  # viewcode links back to the first of several names of an object
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name}: {url} points to an anchor that does not exist"
    for path in sorted(folder.rglob("*.css")):
        for url in filter(is_external, CSS_URL.findall(path.read_text("utf8", errors="replace"))):
            yield f"{path.relative_to(folder)}: loads {url} from the network"


def main(folder: str) -> int:
    """Print the problems and return the exit status."""
    found = list(problems(pathlib.Path(folder)))
    for line in found:
        print(line, file=sys.stderr)
    print(f"check_html: {len(found)} problems")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
