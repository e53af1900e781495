"""The shipped files of the bundled set: a sheet of drawings and a table of names."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nclib.common.files import digest

FOLDER = Path(__file__).parent
SHEET, TABLE, SUMS = "drawings.webp", "concepts.csv", "SHA256SUMS.txt"
WORDING = "wording.csv"  # written by hand, no product of tools/build_emoji.py
TILE = 48  # pixels
TILES_PER_ROW = 30  # ten concepts by three designers
DESIGNERS = ("noto", "twemoji", "fluent")
# Ten classes: each of Unicode's five groups cut in two along its subgroups, 20 concepts in each.
CLASSES: dict[str, tuple[str, ...]] = {
    "mammals": ("animal-mammal",),
    "other nature": (
        "animal-bird", "animal-reptile", "animal-marine", "animal-bug", "plant-flower", "plant-other",
    ),
    "fruit and vegetables": ("food-fruit", "food-vegetable"),
    "dishes and drinks": (
        "food-prepared", "food-asian", "food-marine", "food-sweet", "drink", "dishware",
    ),
    "transport": ("transport-ground", "transport-water", "transport-air"),
    "places and sky": (
        "place-geographic", "place-building", "place-religious", "place-other", "time", "sky & weather",
    ),
    "sport": ("sport", "award-medal"),
    "games and events": ("game", "event", "arts & crafts"),
    "clothes and music": ("clothing", "sound", "music", "musical-instrument"),
    "tools and things": (
        "phone", "computer", "light & video", "book-paper", "money", "mail", "writing", "office", "lock",
        "tool", "science", "medical", "household",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Names:
    """Words and classes of the K concepts."""

    names: tuple[str, ...]
    keywords: tuple[tuple[str, ...], ...]  # phrases of one or two words, true of the concept
    class_of: np.ndarray  # int64, (K,), place in CLASSES


def asset_bytes() -> dict[str, bytes]:
    """Return the sheet and the table as bytes, after a check of their checksums.

    Raises
    ------
    ValueError
        When a shipped file is missing or not as shipped.
    """
    lines = (FOLDER / SUMS).read_text(encoding="utf8").splitlines()
    wanted = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    data, wrong = {}, []
    for name in (SHEET, TABLE):
        path = FOLDER / name
        data[name] = path.read_bytes() if path.is_file() else b""
        if digest(data[name]) != wanted.get(name):
            wrong.append(str(path))
    if wrong:
        raise ValueError(
            f"not as shipped: {', '.join(wrong)}; install nclib again, or rebuild them with "
            "tools/build_emoji.py of the source repository"
        )
    return data


def read_names() -> Names:
    """Read the table."""
    text = asset_bytes()[TABLE].decode("utf8")
    rows = list(csv.DictReader(io.StringIO(text)))
    classes = list(CLASSES)
    return Names(
        names=tuple(row["name"] for row in rows),
        keywords=tuple(tuple(filter(None, row["keywords"].split("|"))) for row in rows),
        class_of=np.array([classes.index(row["class"]) for row in rows]),
    )


def read_wording() -> dict[str, str]:
    """Read the words of captions for words of the table that cannot follow an article, such as "beans"."""
    text = (FOLDER / WORDING).read_text(encoding="utf8")
    return {row["unicode"]: row["caption"] for row in csv.DictReader(io.StringIO(text))}


def read_drawings() -> np.ndarray:
    """Read the drawings by concept and designer, uint8 RGBA (K, 3, 48, 48, 4), alpha not multiplied in."""
    from PIL import Image

    with Image.open(io.BytesIO(asset_bytes()[SHEET])) as image:
        sheet = np.asarray(image.convert("RGBA"))
    height = sheet.shape[0] // TILE
    tiles = sheet.reshape(height, TILE, TILES_PER_ROW, TILE, 4).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(tiles.reshape(-1, len(DESIGNERS), TILE, TILE, 4))
