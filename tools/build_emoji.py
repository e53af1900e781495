"""Rebuild the drawings, the table and the licence texts of the bundled set from the named packages.

Usage, with Pillow (built with raqm) and resvg_py installed::

    mkdir sources && cd sources
    apt-get download fonts-noto-color-emoji unicode-cldr-core unicode-data
    npm pack emoji-datasource-twitter@16.0.0 @iconify-json/fluent-emoji-flat@1.2.6
    cd ..
    python tools/build_emoji.py --sources sources --check    # compare with the shipped files
    python tools/build_emoji.py --sources sources            # write them

The versions are pinned by checksum; the shipped files were made with Pillow 13.0.0 and resvg_py 0.5.0.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import re
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nclib.common.files import digest, write_atomically
from nclib.data.emoji.assets import CLASSES, DESIGNERS, FOLDER, SHEET, SUMS, TABLE, TILE, TILES_PER_ROW

SOURCES = {
    "fonts-noto-color-emoji_2.042-0+deb12u1_all.deb": (
        "a5ab0f69c7938423862320d9aca5dd187b3fd879d6a9a57dd52e17c3fa8d2751"
    ),
    "unicode-cldr-core_41-0.1_all.deb": "35d30d5d3bee4d8244e95236259c4c2a0db06e21bad696515751fcfeee4d0260",
    "unicode-data_15.0.0-1_all.deb": "5efef23bbb1c6a133ecbdd63a2cfa07159ccacf5466a49e2426101c5ecd691fc",
    "emoji-datasource-twitter-16.0.0.tgz": "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
    "iconify-json-fluent-emoji-flat-1.2.6.tgz": (
        "7d064769dee690815f823bc5bcc511d957198caf9f5edd8dd9c1aa48a6aeb175"
    ),
}
FONT, CLDR, UNICODE, TWEMOJI, FLUENT = SOURCES
DOC = "./usr/share/doc/{}/copyright"
SEED = 0
PER_CLASS = 20  # ten classes of 20 concepts each: 200
SMALLEST_SUBGROUP = 3  # a subgroup with fewer candidates would be a class of one or two drawings
STRIKE = 109  # the only pixel size stored in the bitmap font
GROUPS = ("Animals & Nature", "Food & Drink", "Travel & Places", "Activities", "Objects")
# Left out: weapons, smoking, funerals, a holy place; and clock faces and moons differ in a few pixels.
EXCLUDED = re.compile(
    "cigarette|coffin|headstone|funeral urn|bomb|dagger|crossed swords|water pistol|love hotel|kaaba"
    "|.* thirty|.* moon"
)
# Keywords that call a thing by a people, a faith or a star sign, and a misspelling.
DROPPED = re.compile(
    "american|european|india|mexican|russia|vietnam|mauritius|buddhism|hindu|hinduism|religion|shinto"
    "|aquarius|aries|cancer|leo|pisces|zodiac|molusc|thongs"
)


def read_sources(folder: Path) -> dict[str, bytes]:
    """Return the packages' bytes, or stop with one message on everything missing or different."""
    wrong, data = [], {}
    for name, wanted in SOURCES.items():
        path = folder / name
        if not path.is_file():
            wrong.append(f"  {name}: missing")
            continue
        data[name] = path.read_bytes()
        found = digest(data[name])
        if found != wanted:
            wrong.append(f"  {name}: sha256 {found}, expected {wanted}")
    if wrong:
        commands = __doc__.split("::")[1].split("cd ..")[0].strip() if __doc__ else ""
        raise SystemExit(
            f"{folder}: not the expected packages\n" + "\n".join(wrong) + "\nget them with\n    " + commands
        )
    return data


def deb_files(data: bytes, names: list[str]) -> dict[str, bytes]:
    """Return files of a Debian package (an ``ar`` archive that holds ``data.tar.xz``)."""
    at = 8
    while at < len(data):
        header = data[at : at + 60]
        size = int(header[48:58])
        if header[:16].strip().rstrip(b"/") == b"data.tar.xz":
            return tar_files(lzma.decompress(data[at + 60 : at + 60 + size]), names)
        at += 60 + size + size % 2
    raise ValueError("not a Debian package with data.tar.xz")


def tar_files(data: bytes, names: list[str]) -> dict[str, bytes]:
    """Return the files of an archive whose names are, or begin with, one of ``names``."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.startswith(tuple(names)) else None
            if file is not None:
                found[member.name] = file.read()
    missing = [name for name in names if not any(key.startswith(name) for key in found)]
    if missing:
        raise ValueError(f"not in the package: {', '.join(missing)}")
    return found


def read_names(cldr: dict[str, bytes]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return short name and keywords per emoji (variation selectors removed)."""
    names: dict[str, str] = {}
    keywords: dict[str, list[str]] = {}
    for text in cldr.values():
        if not text.startswith(b"<?xml"):
            continue
        for node in ElementTree.fromstring(text).iter("annotation"):
            emoji, value = plain(node.get("cp", "")), node.text or ""
            if node.get("type") == "tts":
                names[emoji] = value.strip()
            else:
                keywords[emoji] = [word.strip() for word in value.split("|")]
    return names, keywords


def read_groups(text: str) -> list[tuple[str, str, str]]:
    """Return (emoji, group, subgroup) of every fully qualified emoji, in Unicode's order."""
    group = subgroup = ""
    rows = []
    for line in text.splitlines():
        if line.startswith("# group:"):
            group = line.split(":", 1)[1].strip()
        elif line.startswith("# subgroup:"):
            subgroup = line.split(":", 1)[1].strip()
        elif "; fully-qualified" in line:
            codes = line.split(";")[0].split()
            rows.append(("".join(chr(int(code, 16)) for code in codes), group, subgroup))
    return rows


def plain(emoji: str) -> str:
    """Remove variation selectors."""
    return emoji.replace("\ufe0f", "")


def key(emoji: str) -> str:
    """Return the code points as the drawing packages write them in file names."""
    return "-".join(f"{ord(c):x}" for c in plain(emoji))


def words(text: str) -> str | None:
    """Return a phrase of one or two plain lower-case words, or None when it is not one."""
    phrase = text.lower().replace("-", " ")
    return phrase if re.fullmatch(r"[a-z]+( [a-z]+)?", phrase) else None


def square(image: Any) -> np.ndarray | None:
    """Crop a drawing to its ink, centre it on a transparent square, scale it; (48, 48, 4) uint8."""
    from PIL import Image

    image = image.convert("RGBA")
    box = image.getbbox()
    if box is None:
        return None
    image = image.crop(box)
    width, height = image.size
    side = max(width, height)
    canvas = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    canvas.paste(image, ((side - width) // 2, (side - height) // 2))
    pixels = np.array(canvas.resize((TILE, TILE), Image.Resampling.LANCZOS))
    pixels[pixels[..., 3] == 0] = 0  # one value for "nothing here", so that the sheet compresses
    return pixels


def drawers(data: dict[str, bytes]) -> dict[str, Callable[[str], np.ndarray | None]]:
    """Return, per designer, a function from an emoji to its drawing (None when there is none)."""
    import resvg_py
    from PIL import Image, ImageDraw, ImageFont

    font_name = "./usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
    font = ImageFont.truetype(
        io.BytesIO(deb_files(data[FONT], [font_name])[font_name]), STRIKE, layout_engine=ImageFont.Layout.RAQM
    )

    def noto(emoji: str) -> np.ndarray | None:
        if font.getlength(emoji) > 150:  # a sequence that the font does not join into one drawing
            return None
        image = Image.new("RGBA", (320, 160), (0, 0, 0, 0))
        ImageDraw.Draw(image).text((10, 10), emoji, font=font, embedded_color=True)
        return square(image)

    folder = "package/img/twitter/64/"
    png = {
        name.removeprefix(folder).removesuffix(".png").replace("-fe0f", "").lstrip("0"): content
        for name, content in tar_files(data[TWEMOJI], [folder]).items()
    }

    def twemoji(emoji: str) -> np.ndarray | None:
        content = png.get(key(emoji))
        return None if content is None else square(Image.open(io.BytesIO(content)))

    svg = tar_files(data[FLUENT], ["package/icons.json", "package/chars.json"])
    icons = json.loads(svg["package/icons.json"])
    chars = {code.replace("-fe0f", ""): name for code, name in json.loads(svg["package/chars.json"]).items()}

    def fluent(emoji: str) -> np.ndarray | None:
        icon = icons["icons"].get(chars.get(key(emoji), ""))
        if icon is None:
            return None
        width, height = (icon.get(side, icons.get(side, 32)) for side in ("width", "height"))
        text = (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="0 0 {width} {height}">{icon["body"]}</svg>'
        )
        return square(Image.open(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=text, width=96)))))

    return dict(zip(DESIGNERS, (noto, twemoji, fluent), strict=True))


def choose(candidates: list[dict[str, str]]) -> list[dict[str, str]]:
    """Choose 20 concepts for each of the ten classes, in pairs from its subgroups in turn, by seed.

    Pairs, so that every subgroup that occurs has at least two concepts and can serve as a class.
    """
    rng = np.random.default_rng(SEED)
    chosen: list[dict[str, str]] = []
    for name, subgroups in CLASSES.items():
        piles = []
        for subgroup in subgroups:
            pile = [row for row in candidates if row["subgroup"] == subgroup]
            if len(pile) >= SMALLEST_SUBGROUP:
                piles.append([pile[i] for i in rng.permutation(len(pile))])
        piles = [piles[i] for i in rng.permutation(len(piles))]
        picked: list[dict[str, str]] = []
        while len(picked) < PER_CLASS:
            for pile in piles:
                picked += [pile.pop() for _ in range(min(2, len(pile), PER_CLASS - len(picked)))]
            if not any(piles):
                raise SystemExit(f"class {name!r}: only {len(picked)} concepts of {PER_CLASS}")
        chosen += [row | {"class": name} for row in picked]
    order = {row["emoji"]: i for i, row in enumerate(candidates)}
    return sorted(chosen, key=lambda row: order[row["emoji"]])


def make(data: dict[str, bytes]) -> dict[str, bytes]:
    """Return the shipped files by name."""
    from PIL import Image

    folder = "./usr/share/unicode/cldr/common/"
    cldr = deb_files(
        data[CLDR],
        [
            f"{folder}annotations/en.xml",
            f"{folder}annotationsDerived/en.xml",
            DOC.format("unicode-cldr-core"),
        ],
    )
    test = "./usr/share/unicode/emoji/emoji-test.txt"
    unicode = deb_files(data[UNICODE], [test, DOC.format("unicode-data")])
    names, keywords = read_names(cldr)
    draw = drawers(data)
    candidates: list[dict[str, str]] = []
    drawings: dict[str, list[np.ndarray]] = {}
    seen: set[str] = set()
    for emoji, group, subgroup in read_groups(unicode[test].decode("utf8")):
        name = words(names.get(plain(emoji), ""))
        if group not in GROUPS or name is None or EXCLUDED.fullmatch(name) or name in seen:
            continue
        pictures = [made for function in draw.values() if (made := function(emoji)) is not None]
        if len(pictures) < len(draw):
            continue
        phrases = [words(keyword) for keyword in keywords.get(plain(emoji), [])]
        kept = [p for p in dict.fromkeys(phrases) if p is not None and p != name and not DROPPED.fullmatch(p)]
        seen.add(name)
        drawings[emoji] = pictures
        candidates.append(
            {"emoji": emoji, "name": name, "keywords": "|".join(kept), "group": group, "subgroup": subgroup}
        )
    chosen = choose(candidates)
    tiles = np.stack([tile for row in chosen for tile in drawings[row["emoji"]]])  # (600, 48, 48, 4)
    rows = len(tiles) // TILES_PER_ROW
    sheet = tiles.reshape(rows, TILES_PER_ROW, TILE, TILE, 4).transpose(0, 2, 1, 3, 4)
    packed, smallest = io.BytesIO(), {"lossless": True, "exact": True, "quality": 100, "method": 6}
    Image.fromarray(sheet.reshape(rows * TILE, TILES_PER_ROW * TILE, 4)).save(packed, "WEBP", **smallest)
    table = io.StringIO()
    writer = csv.DictWriter(table, list(chosen[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(chosen)
    noto = DOC.format("fonts-noto-color-emoji")
    print(f"{len(candidates)} concepts are drawn by all of {', '.join(draw)}; {len(chosen)} chosen")
    return {
        SHEET: packed.getvalue(),
        TABLE: table.getvalue().encode("utf8"),
        "licences/noto-emoji.txt": deb_files(data[FONT], [noto])[noto],
        "licences/emoji-datasource-twitter.txt": tar_files(data[TWEMOJI], ["package/LICENSE"])[
            "package/LICENSE"
        ],
        "licences/unicode-cldr.txt": cldr[DOC.format("unicode-cldr-core")],
        "licences/unicode-data.txt": unicode[DOC.format("unicode-data")],
    }


def main(arguments: list[str] | None = None) -> int:
    """Build, then write or compare; returns 0 when everything is as shipped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sources", type=Path, required=True, help="folder with the packages")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write; default: beside this file")
    parser.add_argument("--check", action="store_true", help="compare with the files in --out, write nothing")
    options = parser.parse_args(arguments)
    files = make(read_sources(options.sources))
    lines = [f"{digest(content)}  {name}\n" for name, content in sorted(files.items())]
    if options.check:
        different = [
            name
            for name, content in files.items()
            if not (options.out / name).is_file() or (options.out / name).read_bytes() != content
        ]
        print("differs: " + ", ".join(different) if different else "all files are as shipped")
        return int(bool(different))
    (options.out / "licences").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(options.out / name, content)
        print(f"{len(content):>9} bytes  {name}")
    write_atomically(options.out / SUMS, "".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
