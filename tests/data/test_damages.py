"""A damaged folder: the check names the file and what is wrong with it, and nothing else."""

import io
import os
from dataclasses import replace

import data_check as command
import numpy as np
import pytest
from data_check import GOOD, MISSING, OTHER, WRONG, check, main, noise_files
from data_convert import half

from nclib.data import load
from nclib.data.feature_files import LAYOUTS
from nclib.data.vocabulary import Vocabulary
from nclib.noise import Mismatch

SIZES = {"train": 6, "dev": 4, "test": 3}
SHAPE = (3, 4)


def numbers(n, shape=SHAPE):
    return np.random.default_rng(n).normal(size=(n, *shape)).astype(np.float32)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A complete folder in the sizes that count as published, with copies and a noise file."""
    folder = tmp_path / "f30k_precomp"
    folder.mkdir()
    for split, n in SIZES.items():
        rows = numbers(n)
        np.save(folder / f"{split}_ims.npy", np.repeat(rows, 5, 0) if split == "dev" else rows)
        (folder / f"{split}_caps.txt").write_text("a dog and a cat\n" * 5 * n)
        half(folder / f"{split}_ims.npy")
    words = Vocabulary.from_texts(["a dog and cat"])
    words.to_json(folder / "f30k_precomp_vocab.json")
    Mismatch.draw(np.arange(30) // 5, 0.5, seed=0).save(folder / "noise_0.5.npy")
    expected = replace(LAYOUTS["f30k"], images=SIZES, words=words.size, row=SHAPE)
    monkeypatch.setitem(command.PAIRS, "f30k", expected)
    return tmp_path


def text(content):
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def array(content):
    return lambda path: np.save(path, content)


def with_value(value, row=2):
    rows = numbers(6)
    rows[row, 1, 1] = value
    return array(rows)


def pickled(path):
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)
    path.write_bytes(stream.getvalue())


def several(path):
    with open(path, "wb") as file:
        np.savez(file, np.arange(30))


DAMAGES = {
    "missing features": ("train_ims.npy", os.unlink, MISSING, "float32 (6 or 30 rows, 3, 4)"),
    "missing captions": ("dev_caps.txt", os.unlink, MISSING, "20 lines"),
    "missing vocabulary": ("f30k_precomp_vocab.json", os.unlink, MISSING, "build_vocabulary=True"),
    "cut short": ("train_ims.npy", lambda p: os.truncate(p, 300), WRONG, "it is cut short: 300 bytes"),
    "cut in the header": ("test_ims.npy", lambda p: os.truncate(p, 20), WRONG, "it is not a .npy file"),
    "too long": ("test_ims.npy", lambda p: p.write_bytes(p.read_bytes() + b"x"), WRONG, "longer than its"),
    "double numbers": ("train_ims.npy", array(np.zeros((6, 3, 4))), WRONG, "must be float32 (rows, regions"),
    "foreign byte order": ("train_ims.npy", array(np.zeros((6, 3, 4), ">f4")), WRONG, "foreign byte order"),
    "two axes": ("train_ims.npy", array(np.zeros((6, 12), "f4")), WRONG, "got float32 (6, 12)"),
    "Fortran order": ("train_ims.npy", array(np.asfortranarray(numbers(6))), WRONG, "Fortran order"),
    "pickled": ("train_ims.npy", pickled, WRONG, "it holds pickled objects, which are never loaded"),
    "other width": ("test_ims.npy", array(numbers(3, (3, 5))), WRONG, "3 x 5, row per image"),
    "too few rows": ("train_ims.npy", array(numbers(5)), WRONG, "5 feature rows and 30 captions"),
    "copies that differ": ("dev_ims.npy", array(numbers(20)), WRONG, "the 5 rows of one image differ"),
    "NaN": ("train_ims.npy", with_value(np.nan), WRONG, "image 2 holds NaN, infinite or huge values"),
    "huge": ("train_ims.npy", with_value(-3e38, 5), WRONG, "image 5 holds NaN, infinite or huge values"),
    "not UTF-8": ("train_caps.txt", text(b"caf\xe9\n" * 30), WRONG, "is not UTF-8 (byte 3)"),
    "empty line": (
        "train_caps.txt",
        text("a dog\n" * 7 + "\n" + "a dog\n" * 22),
        WRONG,
        "30 captions; 1 empty lines, first line 8",
    ),
    "no JSON": ("f30k_precomp_vocab.json", text("{"), WRONG, "not a vocabulary file"),
    "other words": (
        "f30k_precomp_vocab.json",
        lambda p: Vocabulary.from_texts(["chat chien le un"]).to_json(p),
        WRONG,
        "knows 0% of the words of these captions",
    ),
    "more words": (
        "f30k_precomp_vocab.json",
        lambda p: Vocabulary.from_texts(["a dog and cat cow"]).to_json(p),
        OTHER,
        "9 words; published: 8",
    ),
    "copy of other numbers": (
        "train_ims.f16.npy",
        array((numbers(6) * 2).astype(np.float16)),
        WRONG,
        "not a copy of train_ims.npy: row 0 differs; make it again with: python tools/data_convert.py half",
    ),
    "copy of other rows": (
        "train_ims.f16.npy",
        array(numbers(6)[:5].astype(np.float16)),
        WRONG,
        "has shape (5, 3, 4), its original train_ims.npy (6, 3, 4)",
    ),
    "copy cut short": ("dev_ims.f16.npy", lambda p: os.truncate(p, 200), WRONG, "it is cut short"),
    "copy of another type": ("dev_ims.f16.npy", array(numbers(4)), WRONG, "must be float16 (rows, regions"),
    "noise row out of range": (
        "noise_0.5.npy",
        array(np.r_[:29, 6]),
        WRONG,
        "image rows in noise_0.5.npy must be",
    ),
    "noise below zero": ("noise_0.5.npy", array(np.r_[:29, -1]), WRONG, "names image row -1"),
    "noise of other length": ("noise_0.5.npy", array(np.arange(7)), WRONG, "fits neither format"),
    "noise in fractions": ("noise_0.5.npy", array(np.zeros(30)), WRONG, "one row of whole numbers"),
    "noise in several arrays": (
        "noise_0.5.npy",
        several,
        WRONG,
        "not a .npy file",
    ),
    "noise pickled": ("noise_0.5.npy", pickled, WRONG, "cannot be read"),
}


def bad_lines(root):
    report = check("f30k", root)
    lines = [*report.lines, *noise_files(root, [report.training] if report.training else [])]
    return [found for found in lines if found.state != GOOD]


def test_without_damage_nothing_is_named(root, capsys):
    assert bad_lines(root) == []
    assert check("f30k", root, full=True).complete()
    assert main([str(root), "f30k"]) == 0
    assert "float16 copy" in capsys.readouterr().out


@pytest.mark.parametrize("name", DAMAGES)
def test_the_damaged_file_is_named_and_no_other(root, name, capsys):
    file, damage, state, words = DAMAGES[name]
    path = root / "f30k_precomp" / file
    damage(path)
    if file.endswith("_ims.npy") and path.exists() and state == WRONG:
        path.with_name(file.replace(".npy", ".f16.npy")).unlink()  # its copy would be named as well
    found = bad_lines(root)
    assert [(line.file, line.state) for line in found] == [(file, state)]
    assert words in found[0].text
    assert main([str(root), "f30k"]) == 1
    assert words in capsys.readouterr().out


ONLY_CHECKED = ("NaN", "huge", "empty line")  # a run does not read every number before it starts
STOPS = [
    name
    for name, (file, _, state, _) in DAMAGES.items()
    if state == WRONG and file.startswith(("train", "dev", "test")) and name not in ONLY_CHECKED
]


@pytest.mark.parametrize("name", STOPS)
def test_a_run_does_not_start_on_what_would_spoil_it(root, name):
    file, damage, _, _ = DAMAGES[name]
    damage(root / "f30k_precomp" / file)
    with pytest.raises(ValueError, match="do not fit together"):
        load("f30k", root=root, half=file.endswith(".f16.npy"))


def test_copies_alone_are_complete_for_those_who_read_them(root, capsys):
    for split in SIZES:
        (root / "f30k_precomp" / f"{split}_ims.npy").unlink()
    assert main([str(root), "f30k"]) == 1
    assert main([str(root), "f30k", "--half"]) == 0
    assert load("f30k", root=root, half=True).train.n_images == 6
    (root / "f30k_precomp" / "dev_ims.f16.npy").unlink()
    found = [line for line in check("f30k", root, half=True).lines if line.state != GOOD]
    assert [(line.file, line.state) for line in found] == [("dev_ims.f16.npy", MISSING)]
    assert found[0].text == "float16 (4 or 20 rows, 3, 4)"
