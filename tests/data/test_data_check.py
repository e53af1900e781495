"""The check of a folder of the papers' data: it names what is damaged, and nothing else."""

import hashlib
import io
import os
from dataclasses import replace

import data_check as command
import h5py
import numpy as np
import pytest
import scipy.io
from data_check import GOOD, MISSING, OTHER, WRONG, check, main, noise_files
from data_convert import half

from nclib.data import load
from nclib.data.feature_files import LAYOUTS
from nclib.data.vocabulary import Vocabulary
from nclib.noise import PUBLISHED, Mismatch

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
    words("a dog and cat")(folder / "f30k_precomp_vocab.json")
    Mismatch.draw(np.arange(30) // 5, 0.5, seed=0).save(folder / "noise_0.5.npy")
    expected = replace(LAYOUTS["f30k"], images=SIZES, words=8, row=SHAPE)
    monkeypatch.setitem(command.PAIRS, "f30k", expected)
    return tmp_path


def text(content):
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def array(content):
    return lambda path: np.save(path, content)


def half_of(content):
    return array(content.astype(np.float16))


def words(text):
    return lambda path: Vocabulary.from_texts([text]).to_json(path)


def with_value(value, row=2):
    rows = numbers(6)
    rows[row, 1, 1] = value
    return array(rows)


def pickled(path):
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)
    path.write_bytes(stream.getvalue())


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
    "empty line": ("train_caps.txt", text("a dog\n" * 7 + "\n" * 23), WRONG, "23 empty lines, first line 8"),
    "no JSON": ("f30k_precomp_vocab.json", text("{"), WRONG, "not a vocabulary file"),
    "other words": ("f30k_precomp_vocab.json", words("chat chien"), WRONG, "knows 0% of the words of these"),
    "more words": ("f30k_precomp_vocab.json", words("a dog and cat cow"), OTHER, "9 words; published: 8"),
    "copy of other numbers": ("train_ims.f16.npy", half_of(numbers(6) * 2), WRONG, "row 0 differs; make it"),
    "copy of other rows": ("train_ims.f16.npy", half_of(numbers(5)), WRONG, "(5, 3, 4), its original"),
    "copy cut short": ("dev_ims.f16.npy", lambda p: os.truncate(p, 200), WRONG, "it is cut short"),
    "copy of another type": ("dev_ims.f16.npy", array(numbers(4)), WRONG, "must be float16 (rows, regions"),
    "noise row out of range": ("noise_0.5.npy", array(np.r_[:29, 6]), WRONG, "in noise_0.5.npy must be"),
    "noise below zero": ("noise_0.5.npy", array(np.r_[:29, -1]), WRONG, "names image row -1"),
    "noise of other length": ("noise_0.5.npy", array(np.arange(7)), WRONG, "fits neither format"),
    "noise in fractions": ("noise_0.5.npy", array(np.zeros(30)), WRONG, "one row of whole numbers"),
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


def test_copies_alone_are_complete_for_those_who_read_them(root):
    for split in SIZES:
        (root / "f30k_precomp" / f"{split}_ims.npy").unlink()
    assert main([str(root), "f30k"]) == 1
    assert main([str(root), "f30k", "--half"]) == 0
    assert load("f30k", root=root, half=True).train.n_images == 6
    (root / "f30k_precomp" / "dev_ims.f16.npy").unlink()
    found = [line for line in check("f30k", root, half=True).lines if line.state != GOOD]
    assert [(line.file, line.state) for line in found] == [("dev_ims.f16.npy", MISSING)]
    assert found[0].text == "float16 (4 or 20 rows, 3, 4)"


def states(report):
    return {line.file: line.state for line in report.lines}


def test_published_sizes_are_told_from_others(root, monkeypatch, capsys):
    monkeypatch.undo()
    report = check("f30k", root)
    assert (report.complete(any_size=True), report.complete()) == (True, False)
    others = {file for file, state in states(report).items() if state == OTHER}
    assert others == {*(f"{split}_ims.npy" for split in SIZES), "f30k_precomp_vocab.json"}
    assert "published: 29,000 images" in str(report)
    (root / "empty").mkdir()
    codes = {"": 1, "f30k --any-size": 0, "coco --any-size": 1}
    assert {words: main([str(root), *words.split()]) for words in codes} == codes
    said = capsys.readouterr().out
    assert said.startswith("f30k: complete, in other sizes than published")
    assert said.count("coco: not there") == 1  # where it is asked for
    assert main([str(root / "empty")]) == 1
    assert "nothing that is known" in capsys.readouterr().out


def test_boxes_are_checked_where_they_are_and_missed_where_they_are_needed(root):
    assert not any("boxes" in file for file in states(check("f30k", root)))
    found = states(check("f30k", root, boxes=True))
    assert [found[f"{split}_boxes.npy"] for split in SIZES] == [MISSING] * 3
    assert found["train_caps.txt"] == GOOD
    for split, rows in (("train", 6), ("dev", 20), ("test", 4)):  # one too many
        np.save(root / "f30k_precomp" / f"{split}_boxes.npy", np.zeros((rows, 3, 4), np.float32))
    report = check("f30k", root)
    assert [states(report)[f"{split}_boxes.npy"] for split in SIZES] == [GOOD, GOOD, WRONG]
    assert "must be float32 (3, 3, 4), got float32 (4, 3, 4)" in str(report)


def test_a_full_look_reads_every_row(root):
    images = np.zeros((600, 3, 4), np.float32)
    images[301, 1, 2] = np.nan  # between the rows that a short look reads
    np.save(root / "f30k_precomp" / "train_ims.npy", images)
    (root / "f30k_precomp" / "train_caps.txt").write_text("a dog\n" * 3000)
    assert states(check("f30k", root))["train_ims.npy"] == OTHER
    assert "image 301 " in str(check("f30k", root, full=True))


def test_category_files(tmp_path):
    rng, arrays = np.random.default_rng(0), {}
    for split, n in (("train", 20), ("valid", 5), ("test", 6)):
        arrays |= {f"{split}_image": rng.normal(size=(n, 8)), f"{split}_text": rng.normal(size=(n, 3))}
        arrays[f"{split}_label"] = np.arange(n) % 4
    np.savez(tmp_path / "wikipedia.npz", **arrays)
    report = check("wikipedia", tmp_path)
    assert states(report) == {"wikipedia.npz": OTHER}
    assert "20 / 5 / 6 pairs, features 8 and 3, 10 classes; published: 2,173 / 231 / 462 pairs" in str(report)
    with pytest.raises(ValueError, match="sizes='any' accepts other numbers"):
        load("wikipedia", root=tmp_path)
    assert len(load("wikipedia", root=tmp_path, sizes="any").train) == 20
    assert not check("nuswide", tmp_path).found
    np.savez(tmp_path / "wikipedia.npz", **{name: x for name, x in arrays.items() if name != "test_text"})
    assert states(check("wikipedia", tmp_path)) == {"wikipedia": WRONG}


@pytest.mark.parametrize("file", ["wikipedia.npz", "raw_features.mat", "wiki_deep_doc2vec_data_corr_ae.h5py"])
@pytest.mark.parametrize("size", [0, 50, 400])
def test_a_damaged_category_file_is_named(tmp_path, capsys, file, size):
    rng, path = np.random.default_rng(0), tmp_path / file
    arrays = {"I_tr": rng.normal(size=(40, 30)), "T_tr": rng.normal(size=(40, 30))}
    if path.suffix == ".mat":
        scipy.io.savemat(path, arrays)
    elif path.suffix == ".npz":
        np.savez_compressed(path, **arrays)
    else:
        with h5py.File(path, "w") as content:
            content.update(arrays)
    os.truncate(path, size)
    assert main([str(tmp_path)]) == 1
    assert f"{path} cannot be read" in capsys.readouterr().out


def test_published_noise_files_are_recognised(root, monkeypatch):
    path = root / "f30k_precomp" / "noise_0.5.npy"
    assert "30 entries, not a file of the official codes" in noise_files(root)[0].text
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    monkeypatch.setitem(PUBLISHED, digest, ("RCL/DECL f30k", 0.4))
    assert "published: RCL/DECL f30k, rate 0.4" in noise_files(root)[0].text
