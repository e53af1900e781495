"""Print the course as one PDF: ``make pdf``, after ``make html``; needs Chromium or Chrome.

Every page of the course, those parts of ``_toc.yml`` whose caption begins so, is printed by the browser and
joined, with one bookmark a page.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

from executed import parts_of, title_of  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
COURSE = "The course"  # how captions of the course's parts begin


def browser() -> str:
    """Return the browser that prints: the environment's ``CHROMIUM``, else the first of :data:`BROWSERS`."""
    named = [os.environ.get("CHROMIUM"), *map(shutil.which, BROWSERS)]
    for path in named:
        if path:
            return path
    raise SystemExit(
        f"no browser that prints: install one of {', '.join(BROWSERS)}, or give make pdf CHROMIUM=/path"
    )


def printed(page: pathlib.Path, target: pathlib.Path, program: str) -> None:
    """Print one page into a PDF."""
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        options += ["--no-pdf-header-footer", "--virtual-time-budget=20000", f"--print-to-pdf={target}"]
        said = subprocess.run([program, *options, page.as_uri()], capture_output=True, text=True, timeout=300)
    if not target.exists():
        raise SystemExit(f"{program} printed nothing of {page.name}: {said.stderr.strip()[-500:]}")


def main(wheel: str) -> None:
    """Write ``_build/pdf/course.pdf``."""
    import nbformat

    sys.path.insert(0, wheel)  # pypdf, read from its wheel
    import pypdf

    site, out = ROOT / "_build" / "html", ROOT / "_build" / "pdf"
    out.mkdir(parents=True, exist_ok=True)
    program, whole = browser(), pypdf.PdfWriter()
    pages = [page for part, pages in parts_of(ROOT).items() if part.startswith(COURSE) for page in pages]
    for name in pages:
        page, target = site / f"{name}.html", out / f"{pathlib.Path(name).name}.pdf"
        if not page.exists():
            raise SystemExit(f"{page.relative_to(ROOT)} is not built: make html first")
        target.unlink(missing_ok=True)
        printed(page, target, program)
        source = ROOT / f"{name}.ipynb"
        title = title_of(nbformat.read(source, 4), name) if source.exists() else pathlib.Path(name).name
        whole.append(str(target), outline_item=title)
        print(f"{name}: {len(pypdf.PdfReader(str(target)).pages)} pages", flush=True)
    whole.write(str(out / "course.pdf"))
    print(f"Open {(out / 'course.pdf').as_uri()}")


if __name__ == "__main__":
    main(sys.argv[1])
