"""Parts of the scripts that rebuild the shipped files."""

import hashlib
import io
import lzma
import tarfile

import build_emoji
import learn_codebook
import numpy as np
import pytest
from PIL import Image

from nclib.data.emoji import assets, compose, features, render


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def test_missing_and_changed_packages_are_listed_at_once(tmp_path):
    (tmp_path / build_emoji.FONT).write_bytes(b"something else")
    with pytest.raises(SystemExit) as stop:
        build_emoji.read_sources(tmp_path)
    text = str(stop.value)
    assert f"{build_emoji.CLDR}: missing" in text
    assert f"{build_emoji.FONT}: sha256 " in text
    assert "apt-get download fonts-noto-color-emoji" in text


def test_a_debian_package_is_read():
    content = lzma.compress(tar({"./a/b.txt": b"hello", "./c": b"no"}))
    members = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", content)]
    package = b"!<arch>\n"
    for name, body in members:
        package += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(body):<10}`\n".encode() + body
        package += b"\n" * (len(body) % 2)
    assert build_emoji.deb_files(package, ["./a/b.txt"]) == {"./a/b.txt": b"hello"}
    with pytest.raises(ValueError, match=r"not in the package: \./d"):
        build_emoji.deb_files(package, ["./d"])


def test_unicode_groups_are_read():
    text = (
        "# group: Food & Drink\n# subgroup: food-fruit\n"
        "1F347 ; fully-qualified # x E0.6 grapes\n1F348 ; unqualified # y\n"
        "# subgroup: drink\n2615 FE0F ; fully-qualified # z\n"
    )
    assert build_emoji.read_groups(text) == [
        ("\U0001f347", "Food & Drink", "food-fruit"),
        ("☕\ufe0f", "Food & Drink", "drink"),
    ]
    assert build_emoji.key("☕\ufe0f") == "2615"


def test_names_and_keywords_are_read():
    xml = (
        b'<?xml version="1.0"?><ldml><annotations><annotation cp="X">a | b c</annotation>'
        b'<annotation cp="X" type="tts">name</annotation></annotations></ldml>'
    )
    assert build_emoji.read_names({"f": xml, "licence": b"text"}) == ({"X": "name"}, {"X": ["a", "b c"]})


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("T-Rex", "t rex"),
        ("dog", "dog"),
        ("flying disc", "flying disc"),
        ("man’s shoe", None),
        ("a b c", None),
    ],
)
def test_only_plain_short_phrases_are_kept(text, phrase):
    assert build_emoji.words(text) == phrase


def test_drawings_are_cropped_centred_and_scaled():
    image = Image.new("RGBA", (100, 60), (0, 0, 0, 0))
    image.paste((255, 0, 0, 255), (30, 10, 70, 30))
    pixels = build_emoji.square(image)
    assert pixels.shape == (48, 48, 4)
    ink = pixels[..., 3] > 128
    assert ink[12:36].all()
    assert not ink[:11].any()
    assert not ink[37:].any()
    assert (pixels[ink][:, :3] == (255, 0, 0)).all()
    assert build_emoji.square(Image.new("RGBA", (5, 5), (0, 0, 0, 0))) is None


def test_the_choice_is_balanced_and_repeatable():
    candidates = [
        {"emoji": chr(0x4E00 + 40 * k + i), "subgroup": name}
        for k, name in enumerate(s for group in assets.CLASSES.values() for s in group)
        for i in range(24)
    ]
    chosen = build_emoji.choose(candidates)
    assert chosen == build_emoji.choose(list(candidates))
    assert len(chosen) == 200
    counts = {}
    for row in chosen:
        counts[row["class"]] = counts.get(row["class"], 0) + 1
    assert counts == dict.fromkeys(assets.CLASSES, 20)
    subgroups = [row["subgroup"] for row in chosen]
    assert min(subgroups.count(name) for name in set(subgroups)) >= 2


def test_the_listed_sums_are_those_of_the_shipped_files():
    for line in (assets.FOLDER / assets.SUMS).read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        assert hashlib.sha256((assets.FOLDER / name).read_bytes()).hexdigest() == digest
    attribution = (assets.FOLDER / "ATTRIBUTION.md").read_text()
    for package in build_emoji.SOURCES:
        version = package.removesuffix("_all.deb").removesuffix(".tgz").replace("_", " ")
        assert version.rsplit("-", 1)[-1].split()[-1] in attribution
    assert {p.name for p in (assets.FOLDER / "licences").iterdir()} == {
        part.split("/")[1].split("`")[0] for part in attribution.split("`licences")[1:]
    }


@pytest.mark.slow
def test_learning_a_codebook_gives_whole_numbers_within_bounds():
    scenes = compose.compose(200, seed=0, split="test", block=0, variant="standard")
    painter = render.Painter(assets.read_drawings())
    boxes = compose.draw_boxes(scenes, seed=0, split="test", block=0)[:40, :6]
    crops = render.crop(painter.paint(scenes[:40]), boxes).reshape(240, 3, 14, 14).astype(np.float32)
    book = learn_codebook.learn(crops, seed=1)
    assert book["filters"].shape == (48, 3, 5, 5)
    assert np.abs(book["filters"]).max(axis=(1, 2, 3)).min() == features.LARGEST
    assert np.isfinite(book["scale"]).all()
