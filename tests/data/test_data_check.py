"""The command that verifies a folder of the papers' data, on small files in the true layout."""

import dataclasses
import os

import data_check as command
import h5py
import numpy as np
import pytest
import scipy.io
from data_check import GOOD, MISSING, OTHER, WRONG, check, main, noise_files

from nclib.data import load
from nclib.data.vocabulary import Vocabulary

SPLITS = {"f30k": ("train", "dev", "test"), "coco": ("train", "dev", "testall")}


def write(folder, split, n, *, each=5, per_caption=False, ending="caps.txt"):
    folder.mkdir(exist_ok=True)
    images = np.random.default_rng(n).normal(size=(n, 3, 4)).astype(np.float32)
    np.save(folder / f"{split}_ims.npy", np.repeat(images, each, 0) if per_caption else images)
    lines = [("7\t" if ending.endswith("tsv") else "") + f"a dog {i}" for i in range(n * each)]
    (folder / f"{split}_{ending}").write_text("\n".join(lines) + "\n", "utf8")


def words(path):
    path.parent.mkdir(exist_ok=True)
    Vocabulary.from_texts(["a dog"]).to_json(path)


@pytest.fixture
def f30k(tmp_path):
    folder = tmp_path / "f30k_precomp"
    for split, n in (("train", 6), ("dev", 4), ("test", 3)):
        write(folder, split, n, per_caption=split == "dev")
    words(tmp_path / "vocab" / "f30k_precomp_vocab.json")
    return tmp_path


def states(report):
    return {line.file: line.state for line in report.lines}


def test_published_sizes_are_told_from_others(f30k, monkeypatch):
    report = check("f30k", f30k)
    assert report.folder == f30k / "f30k_precomp"
    assert report.complete(any_size=True)
    assert not report.complete()
    assert states(report) == {
        "train_ims.npy": OTHER, "train_caps.txt": GOOD, "dev_ims.npy": OTHER, "dev_caps.txt": GOOD,
        "test_ims.npy": OTHER, "test_caps.txt": GOOD, "f30k_precomp_vocab.json": OTHER,
    }  # fmt: skip
    assert str(report).startswith("f30k: complete, in other sizes than published")
    assert "4 images of 3 x 4, row per caption" in str(report)
    assert "published: 29,000 images" in str(report)
    sizes = {"train": 6, "dev": 4, "test": 3}
    small = dataclasses.replace(command.PAIRS["f30k"], images=sizes, words=6, row=None)
    monkeypatch.setitem(command.PAIRS, "f30k", small)
    assert check("f30k", f30k).complete()
    assert str(check("f30k", f30k)).startswith("f30k: complete")


def test_boxes_are_checked_where_they_are_and_missed_where_they_are_needed(f30k, capsys):
    assert not any("boxes" in file for file in states(check("f30k", f30k)))
    report = check("f30k", f30k, boxes=True)
    assert [states(report)[f"{split}_boxes.npy"] for split in SPLITS["f30k"]] == [MISSING] * 3
    assert "train_boxes.npy               float32 (a row for each row of features, 36, 4)" in str(report)
    assert states(report)["train_caps.txt"] == GOOD
    main([str(f30k)])
    said = capsys.readouterr().out
    assert "f30k_precomp/*_boxes.npy      boxes of the regions of train, dev, test, for TERAN" in said
    for split, rows in (("train", 6), ("dev", 20), ("test", 4)):  # one too many
        np.save(f30k / "f30k_precomp" / f"{split}_boxes.npy", np.zeros((rows, 3, 4), np.float32))
    found = check("f30k", f30k)
    assert [states(found)[f"{split}_boxes.npy"] for split in SPLITS["f30k"]] == [GOOD, GOOD, WRONG]
    assert "must be float32 (3, 3, 4), got float32 (4, 3, 4)" in str(found)


def test_a_file_cut_short_or_with_nan_is_wrong(f30k):
    folder = f30k / "f30k_precomp"
    data = (folder / "train_ims.npy").read_bytes()
    (folder / "train_ims.npy").write_bytes(data[:-40])
    assert states(check("f30k", f30k))["train_ims.npy"] == WRONG
    images = np.zeros((600, 3, 4), np.float32)
    images[301, 1, 2] = np.nan  # between the rows that a short look reads
    np.save(folder / "train_ims.npy", images)
    (folder / "train_caps.txt").write_text("a dog\n" * 3000)
    assert states(check("f30k", f30k))["train_ims.npy"] == OTHER
    full = check("f30k", f30k, full=True)
    assert states(full)["train_ims.npy"] == WRONG
    assert "image 301 " in str(full)
    images[0, 0, 0] = np.inf
    np.save(folder / "train_ims.npy", images)
    assert "image 0 " in str(check("f30k", f30k))


def test_category_files(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 20), ("valid", 5), ("test", 6)):
        arrays |= {f"{split}_image": rng.normal(size=(n, 8)), f"{split}_text": rng.normal(size=(n, 3))}
        arrays[f"{split}_label"] = np.arange(n) % 4
    np.savez(tmp_path / "wikipedia.npz", **arrays)
    report = check("wikipedia", tmp_path)
    assert states(report) == {"wikipedia.npz": OTHER}
    assert "20 / 5 / 6 pairs, features 8 and 3, 10 classes; published: 2,173 / 231 / 462 pairs" in str(report)
    assert "with data_options sizes=any" in str(report)
    with pytest.raises(ValueError, match="sizes='any' accepts other numbers"):
        load("wikipedia", root=tmp_path)
    assert len(load("wikipedia", root=tmp_path, sizes="any").train) == 20
    assert not check("nuswide", tmp_path).found
    del arrays["test_text"]
    np.savez(tmp_path / "wikipedia.npz", **arrays)
    assert states(check("wikipedia", tmp_path)) == {"wikipedia": WRONG}


@pytest.mark.parametrize("file", ["wikipedia.npz", "wikipedia.mat", "wiki_deep_doc2vec_data_corr_ae.h5py"])
@pytest.mark.parametrize("size", [0, 50, 400])
def test_a_damaged_category_file_is_named(tmp_path, capsys, file, size):
    rng, path = np.random.default_rng(0), tmp_path / file
    arrays = {"tr_fc7": rng.normal(size=(40, 30)), "tr_txt": rng.normal(size=(40, 30))}
    if path.suffix == ".mat":
        scipy.io.savemat(path, arrays)
    elif path.suffix == ".npz":
        np.savez_compressed(path, **arrays)
    else:
        with h5py.File(path, "w") as content:
            content.update(arrays)
    os.truncate(path, size)
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"{path} cannot be read" in said
    assert "get it again" in said


def test_noise_files_are_named(tmp_path, monkeypatch):
    np.save(tmp_path / "noise_inx_0.4.npy", np.arange(12))
    np.save(tmp_path / "0.6_noise.npy", np.zeros((2, 2)))
    (tmp_path / "short_inx.npy").write_bytes(b"x")
    found = {line.file: line for line in noise_files(tmp_path)}
    assert {k: v.state for k, v in found.items()} == {
        "noise_inx_0.4.npy": GOOD, "0.6_noise.npy": WRONG, "short_inx.npy": WRONG
    }  # fmt: skip
    assert "12 entries, not a file of the official codes" in found["noise_inx_0.4.npy"].text
    import hashlib

    from nclib.noise import PUBLISHED

    digest = hashlib.sha256((tmp_path / "noise_inx_0.4.npy").read_bytes()).hexdigest()[:16]
    monkeypatch.setitem(PUBLISHED, digest, ("RCL/DECL f30k", 0.4))
    assert "published: RCL/DECL f30k, rate 0.4" in noise_files(tmp_path)[1].text


def test_command(f30k, capsys):
    assert main([str(f30k)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("f30k: complete, in other sizes")
    assert "\ncoco" not in out  # nothing of it is there
    assert main([str(f30k), "f30k", "--any-size"]) == 0
    assert main([str(f30k), "coco", "--any-size"]) == 1
    assert "coco: not there" in capsys.readouterr().out
    empty = f30k / "empty"
    empty.mkdir()
    assert main([str(empty)]) == 1
    assert "nothing that is known" in capsys.readouterr().out
