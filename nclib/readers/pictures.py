"""Pictures opened by name, from a folder which they never leave."""

from __future__ import annotations

import io
import os
import posixpath
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from nclib.readers.captions_table import one_line

if TYPE_CHECKING:
    from PIL.Image import Image

#: Formats that are read: none that starts another program (EPS) or is a document (PDF).
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MISSING = "the picture is missing"
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
Opener = Callable[[str], Any]


class UnreadableError(ValueError):
    """A picture that cannot be read; the message is the reason."""


def open_picture(file: Path | io.BytesIO, side: int | None = None) -> Image:
    """Return a picture in red, green and blue, upright and on white; with ``side`` a small copy to look at.

    Of one with more than 8 bits, the darkest value becomes black and the brightest white.

    Raises
    ------
    UnreadableError
        When it is missing, damaged, cut off, in a format not listed in :data:`FORMATS`, or so large that it
        may be an attack.
    """
    from PIL import Image, UnidentifiedImageError

    if isinstance(file, Path) and not os.path.isfile(file):  # False for a name that no file can have
        raise UnreadableError(MISSING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as picture:
                return _on_white(picture, side)
    except UnidentifiedImageError:
        kinds = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UnreadableError(f"the file is not a picture in {kinds}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise UnreadableError(f"the picture has more than {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise UnreadableError(f"the picture cannot be read ({one_line(str(error))[:80]})") from error


def _on_white(picture: Image, side: int | None) -> Image:
    """Return a copy in RGB, without metadata; with ``side`` of at most as many pixels each way."""
    from PIL import Image, ImageOps

    if picture.mode.startswith(("I", "F")):  # Pillow would cut off what lies beyond 8 bits
        grey = np.nan_to_num(np.asarray(picture, np.float32))
        picture = Image.fromarray(np.uint8(255 * (grey - grey.min()) / max(np.ptp(grey), 1e-9)))
    if picture.mode == "P" or picture.has_transparency_data:
        picture = picture.convert("RGBA")
    if side is not None:
        picture.thumbnail((side, side))
    picture = ImageOps.exif_transpose(picture)
    flat = Image.new("RGB", picture.size, "white")
    flat.paste(picture.convert("RGB"), mask=picture.getchannel("A") if "A" in picture.getbands() else None)
    return flat


class Files:
    """Pictures of a table by name; a relative one never leads out of their folder.

    With ``only``, an absolute name must lie in the folder as well; with ``follow``, none must. Names may
    begin with that of the folder.
    """

    def __init__(self, folder: Path, *, only: bool, follow: bool = False) -> None:
        self.folder, self.only, self.follow = "" if folder == Path() else str(folder), only, follow
        within = folder / folder.name
        self.front = "" if not folder.name or within.is_dir() else f"{folder.name}/"

    def path(self, name: str) -> str | None:
        """Return where a picture should be; None for one outside the folder."""
        if os.path.isabs(name):
            if not self.only or self.follow:
                return name
            name = os.path.relpath(name, self.folder)
        whole = posixpath.normpath(name.replace("\\", "/")).removeprefix(self.front)
        outside = (whole == ".." or whole.startswith("../")) and not self.follow
        return None if outside else os.path.join(self.folder, whole)

    def file(self, name: str) -> Path:
        """Return the file of a picture; URLs are not downloaded."""
        if URL.match(name):
            raise UnreadableError("a URL: pictures are not downloaded; give embeddings, or the pictures")
        path = self.path(name)
        if path is None:
            raise UnreadableError("the picture lies outside the folder of the pictures; --follow allows that")
        return Path(path)

    def show(self, name: str) -> str:
        """Return the path or the URL of a picture, for tables."""
        path = None if URL.match(name) or not name else self.path(name)
        return name if path is None else path


def unreadable(opener: Opener, names: Iterable[str]) -> dict[str, str]:
    """Return the pictures that cannot be opened, each with the reason."""
    bad = {}
    for name in tqdm(names, desc="pictures", unit="picture", disable=not sys.stderr.isatty()):
        try:
            opener(name)
        except UnreadableError as error:
            bad[name] = str(error)
    return bad
