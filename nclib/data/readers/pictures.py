"""Pictures by name: those of a folder, which they never leave, and what is said of damaged ones."""

from __future__ import annotations

import io
import os
import posixpath
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from nclib.data.captions_table import one_line

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MISSING = "the picture is missing"
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class UnreadableError(ValueError):
    """A picture that cannot be read; the message is the reason."""


def open_picture(file: Path | io.BytesIO) -> Image:
    """Return a picture in red, green and blue.

    Raises
    ------
    UnreadableError
        When it is missing, damaged, cut off or so large that it may be an attack.
    """
    from PIL import Image, UnidentifiedImageError

    if isinstance(file, Path) and not file.is_file():
        raise UnreadableError(MISSING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as picture:
                return picture.convert("RGB")
    except UnidentifiedImageError:
        raise UnreadableError("the file is not a picture") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise UnreadableError(f"the picture has more than {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise UnreadableError(f"the picture cannot be read ({one_line(str(error))[:80]})") from error


class Files:
    """Pictures of a table by name; a relative one never leads out of their folder.

    With ``only``, an absolute name must lie in the folder as well.
    """

    def __init__(self, folder: Path, *, only: bool) -> None:
        self.folder, self.only = "" if folder == Path() else str(folder), only

    def path(self, name: str) -> str | None:
        """Return where a picture should be; None for one outside the folder."""
        if os.path.isabs(name):
            if not self.only:
                return name
            name = os.path.relpath(name, self.folder)
        whole = posixpath.normpath(name.replace("\\", "/"))
        return None if whole == ".." or whole.startswith("../") else os.path.join(self.folder, whole)

    def open(self, name: str) -> Image:
        """Open a picture; URLs are not downloaded."""
        if URL.match(name):
            raise UnreadableError("a URL: pictures are not downloaded; give embeddings, or the pictures")
        path = self.path(name)
        if path is None:
            raise UnreadableError("the picture lies outside the folder of the pictures")
        return open_picture(Path(path))

    def show(self, name: str) -> str:
        """Return the path or the URL of a picture, for tables."""
        path = None if URL.match(name) or not name else self.path(name)
        return name if path is None else path
