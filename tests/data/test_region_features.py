"""The field's file layout, with small files in the true shapes."""

import json
import pickle
import re

import numpy as np
import pytest
import torch
from baselines import fashion
from torch.utils.data import DataLoader

import nclib
from nclib.data import load
from nclib.data.feature_files import LAYOUTS
from nclib.data.vocabulary import SPECIAL, Vocabulary

REGIONS, DIM = 3, 4


def features(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, REGIONS, DIM)).astype(np.float32)


def captions(n, each):
    return [f"Image {i // each}, told {i % each}: a dog isn't here." for i in range(n * each)]


def write(folder, split, n, each=5, per_caption=False, tsv=False, seed=0, text=""):
    images = features(n, seed)
    np.save(folder / f"{split}_ims.npy", np.repeat(images, each, 0) if per_caption else images)
    lines = [text] * n * each if text else captions(n, each)
    if tsv:
        lines = [f"{i}_77\t{line} " for i, line in enumerate(lines)]
    (folder / f"{split}_caps.{'tsv' if tsv else 'txt'}").write_text("\n".join(lines) + "\n", encoding="utf8")
    return images


def write_vocabulary(folder, name):
    Vocabulary.from_texts([[*"a,:.", "dog", "here", "is", "n't", "told", "image"]]).to_json(
        folder / f"{name}_precomp_vocab.json"
    )


@pytest.fixture
def f30k(tmp_path):
    """Row per image in train and test, row per caption in dev, as in the published package."""
    folder = tmp_path / "f30k_precomp"
    folder.mkdir()
    (tmp_path / "vocab").mkdir()
    write_vocabulary(tmp_path / "vocab", "f30k")
    for k, (split, n) in enumerate({"train": 12, "dev": 7, "test": 4}.items()):
        write(folder, split, n, per_caption=split == "dev", seed=k)
    return tmp_path


def test_captions_are_cut_and_looked_up(f30k):
    train = load("f30k", root=f30k).train
    assert train.captions.text(6) == "Image 1, told 1: a dog isn't here."
    words = [train.captions.vocabulary.words[i] for i in train.captions.ids(6)]
    assert " ".join(words) == "<start> image <unk> , told <unk> : a dog is n't here . <end>"


def test_worker_processes_read_the_files_themselves(f30k):
    data = load("f30k", root=f30k)
    workers = {"num_workers": 1, "multiprocessing_context": "spawn"}
    batches = DataLoader(range(12), 5, collate_fn=data.train.features, **workers)
    assert torch.equal(torch.cat(list(batches)), data.train.features(range(12)))
    packed = pickle.dumps(data)
    again = pickle.loads(packed)
    assert again.val.images.path == f30k / "f30k_precomp" / "dev_ims.npy"
    assert torch.equal(again.val.features([6, 2]), data.val.features([6, 2]))
    assert again.vocabulary.encode("a dog isn't here").tolist() == [1, 7, 8, 11, 12, 9, 2]
    write(f30k / "f30k_precomp", "dev", 7, per_caption=True, seed=5)
    with pytest.raises(ValueError, match=r"dev_ims\.npy is not the file that it was; load the data again"):
        pickle.loads(packed)


def test_validation_protocols_differ_only_where_the_trap_is(f30k):
    folder = f30k / "f30k_precomp"

    def sizes(**options):
        val = load("f30k", root=f30k, **options).val
        return val.n_images, val.n_captions

    write(folder, "dev", 1014, per_caption=True)  # as published
    assert (sizes(), sizes(dev_protocol="ncr200")) == ((1000, 5000), (200, 1000))
    write(folder, "dev", 1014)
    assert sizes(dev_protocol="ncr200") == (1000, 5000)


def test_everything_misshapen_is_listed_at_once(f30k):
    folder = f30k / "f30k_precomp"
    np.save(folder / "train_ims.npy", features(11))
    whole = (folder / "dev_ims.npy").read_bytes()
    (folder / "dev_ims.npy").write_bytes(whole[:-8])
    np.save(folder / "test_ims.npy", features(4).astype(np.float64))
    said = r"train_ims.npy has 11 .* 60 captions[\s\S]*dev_ims.npy .* cut short[\s\S]*test_ims.npy must be f"
    with pytest.raises(ValueError, match=said):
        load("f30k", root=f30k)


def test_lines_without_caption_are_refused(tmp_path):
    write_vocabulary(tmp_path, "cc152k")
    for split in ("train", "dev", "test"):
        write(tmp_path, split, 3, each=1, tsv=True)
    (tmp_path / "dev_caps.tsv").write_text("1\ta\n2 b\n3\tc\n")
    with pytest.raises(ValueError, match="1 lines without a tab-separated caption, first line 2"):
        load("cc152k", root=tmp_path)


def test_a_vocabulary_is_built_only_on_request(f30k):
    (f30k / "vocab" / "f30k_precomp_vocab.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"f30k_precomp_vocab\.json"):
        load("f30k", root=f30k)
    train, dev, test = (["plain"] * n for n in (60, 35, 20))
    train[:3], dev[:1], test[:4] = ["cat owl"] * 3, ["cat"], ["plain owl"] * 4
    for split, lines in (("train", train), ("dev", dev), ("test", test)):
        (f30k / "f30k_precomp" / f"{split}_caps.txt").write_text("\n".join(lines))
    data = load("f30k", root=f30k, build_vocabulary=True)
    # four times in train and dev is enough, three times is not, and test captions do not count
    assert data.vocabulary.words == (*SPECIAL, "cat", "plain")
    stored = json.loads((f30k / "f30k_precomp" / "f30k_precomp_vocab.json").read_text())
    assert stored["idx"] == data.vocabulary.size
    assert load("f30k", root=f30k).vocabulary == data.vocabulary


def test_long_captions_are_named_among_published_ones_or_cut_with_a_warning(f30k, tmp_path):
    (f30k / "f30k_precomp" / "dev_caps.txt").write_text("a dog\n" * 7 + "dog " * 10_000 + "\na dog" * 27)
    with pytest.raises(ValueError, match=r"dev_caps\.txt: caption 7 has 10,000 words.*max_words"):
        load("f30k", root=f30k)
    for split in ("train", "dev", "test"):
        write(tmp_path, split, 2, each=1, text="a b c d e f g")
    with pytest.warns(UserWarning, match=r"6 captions have more than 5 words \(up to 7\) and are cut"):
        data = load("region_files", root=tmp_path, captions_per_image=1, max_words=5)
    assert data.train.captions.texts[0] == "a b c d e"
    assert len(load("region_files", root=tmp_path, captions_per_image=1).train.captions.texts[0]) == 13


GERMAN = "Ein Hund läuft am Strand, und die Frau im roten Kleid wirft den Ball"
ENGLISH = "a dog runs on the beach in the sun"


@pytest.mark.parametrize("name", ["f30k", "coco", "cc152k", "region_files", "f8k"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("odd", [GERMAN, " ", "\u200b", "..."])
def test_captions_that_the_vocabulary_does_not_know_are_refused(tmp_path, name, split, odd):
    layout = LAYOUTS.get(name)
    stem, each = (layout.stem, layout.captions_per_image) if layout else ("region_files", 5)
    ending = "caps.tsv" if name == "cc152k" else "caps.txt"
    Vocabulary.from_texts([ENGLISH]).to_json(tmp_path / f"{stem}_vocab.json")
    told = {"test": "testall"}.get(split, split) if name == "coco" else split
    for part in ("train", "dev", "testall" if name == "coco" else "test"):
        write(tmp_path, part, 20, each, tsv=name == "cc152k", text=odd if part == told else ENGLISH)
    role = split.replace("dev", "val")
    said = rf"{stem}_vocab.json, or the training captions, lack\n.*'{role}': .*{told}_{ending}, line 1: "
    with pytest.raises(ValueError, match=said):
        load(name, root=tmp_path)


def test_a_few_captions_without_a_known_word_are_named_in_a_warning(f30k):
    path = f30k / "f30k_precomp" / "test_caps.txt"
    lines = path.read_text().splitlines()
    lines[7:9] = ["", GERMAN]
    path.write_text("\n".join(lines))
    said = r"test': 50 of 176 words \(28%\), and all words of 2 of 20 captions; .*line 8: ''"
    with pytest.warns(UserWarning, match=said):
        data = load("f30k", root=f30k)
    assert data.test.captions.lengths[7] == 2


@pytest.mark.parametrize("value", [np.nan, 3e38, -1e19])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_value_that_cannot_be_squared_is_named_in_time(tmp_path, split, value):
    for part in ("train", "dev", "test"):
        write(tmp_path, part, 40, each=1, text="a b c")
    path = tmp_path / f"{split}_ims.npy"
    rows = np.load(path)
    rows[3, 1, 2] = value
    np.save(path, rows)
    said = re.escape(f"{split}_ims.npy: image 3, region 1, feature 2 is {value:g}")
    given = {"root": str(tmp_path), "captions_per_image": 1}
    short = {"model": "bow", "batch_size": 4, "out": str(tmp_path / "runs"), "progress": False}
    with pytest.raises(ValueError, match=said) as error:
        nclib.run("plain", dataset="region_files", data_options=given, **short)
    assert "lr" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_sets_for_judging_are_read_as_they_were_prepared(tmp_path, monkeypatch):
    folder = tmp_path / "fashion44k"
    folder.mkdir()
    for split, n in {"train": 12, "dev": 7, "test": 4}.items():
        images = write(folder, split, n, each=1)
        np.save(folder / f"{split}_ims.f16.npy", images.astype(np.float16))
    with pytest.raises(ValueError, match=r"holds \(12, 7, 4\) pairs .* the recorded runs have \(42072, 1000"):
        load("fashion44k", root=folder)
    monkeypatch.setattr(fashion, "PAIRS", (12, 7, 4))
    found = load("fashion44k", root=tmp_path)
    own = load("region_files", root=folder, captions_per_image=1, half=True)
    assert (found.name, found.checksum) == ("fashion44k", own.checksum)
    assert not found.details["pairs_as_found"]
    assert nclib.resolve("plain", dataset="fashion44k", data_options={"root": "x"}).run.mrate == 0.6


def test_categories_for_judging_are_read_as_they_were_prepared(tmp_path, monkeypatch):
    data = load("planted_category", n_train=30)
    splits, arrays = dict(zip(("train", "valid", "test"), data.splits.values(), strict=True)), {}
    for name, split in splits.items():
        arrays |= {f"{name}_image": split.images, f"{name}_text": split.texts, f"{name}_label": split.labels}
    np.savez(tmp_path / "fashion_category.npz", **arrays)
    with pytest.raises(ValueError, match=r"the recorded runs have \(8000, 2000, 2000\)"):
        load("fashion_category", root=tmp_path)
    monkeypatch.setattr(fashion, "CATEGORY_PAIRS", tuple(map(len, splits.values())))
    found = load("fashion_category", root=tmp_path)
    np.testing.assert_array_equal(found.test.texts, data.test.texts)
    assert found.name == "fashion_category"
