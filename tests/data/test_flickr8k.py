"""The data set f8k: what its checksum covers, and what is refused."""

import json

import numpy as np
import pytest

from nclib.common.files import digest
from nclib.data import flickr8k, load
from nclib.data.feature_files import build_words
from nclib.data.flickr8k import summarise


@pytest.fixture
def prepared(tmp_path):
    """A small folder as ``nclib data prepare f8k`` leaves it."""
    rng = np.random.default_rng(0)
    summary, texts = {}, {}
    for split, n in (("train", 30), ("dev", 10), ("test", 10)):
        features = rng.normal(size=(n, 16, 256)).astype(np.float32)
        np.save(tmp_path / f"{split}_ims.npy", features)
        texts[split] = [f"a dog number {i % 7} runs" for i in range(5 * n)]
        (tmp_path / f"{split}_caps.txt").write_text("".join(f"{t}\n" for t in texts[split]))
        summary[split] = summarise(features)
    build_words(texts["train"] + texts["dev"]).to_json(tmp_path / "f8k_precomp_vocab.json")
    files = {path.name: digest(path) for path in tmp_path.iterdir()}
    manifest = {"recipe": "r", "content": "c", "finished": True, "summary": summary, "files": files}
    (tmp_path / "prepared.json").write_text(json.dumps(manifest))
    return tmp_path


def change(folder, **values):
    path = folder / "prepared.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rounded_elsewhere(folder):
    summary = {}
    for split in ("train", "dev", "test"):
        features = np.load(folder / f"{split}_ims.npy") * np.float32(1 + 2e-6)
        np.save(folder / f"{split}_ims.npy", features)
        summary[split] = summarise(features)
    files = {p.name: digest(p) for p in folder.iterdir() if p.name != "prepared.json"}
    change(folder, summary=summary, files=files)


def test_shape_and_checksum(prepared, monkeypatch):
    dataset = load("f8k", root=prepared)
    assert (dataset.train.n_images, dataset.n_regions, dataset.feature_dim) == (30, 16, 256)
    monkeypatch.setattr(flickr8k, "RECORDED", json.loads((prepared / "prepared.json").read_text())["summary"])
    recorded = load("f8k", root=prepared).checksum
    assert recorded != dataset.checksum  # features of another size than the recorded ones
    rounded_elsewhere(prepared)
    assert load("f8k", root=prepared).checksum == recorded
    change(prepared, content="other captions")
    assert load("f8k", root=prepared).checksum != recorded


def test_changed_or_unfinished_files_are_refused(prepared):
    change(prepared, finished=False)
    with pytest.raises(ValueError, match=r"holds no finished prepared\.json"):
        load("f8k", root=prepared)
    change(prepared, finished=True)
    features, captions = prepared / "train_ims.npy", prepared / "dev_caps.txt"
    whole = features.read_bytes()
    last = np.load(features)
    last[29, 15, 255] += 1  # one number of 122,880
    np.save(features, last)
    with pytest.raises(ValueError, match=r"train_ims\.npy was changed after its preparation"):
        load("f8k", root=prepared)
    features.write_bytes(whole)
    captions.write_text(captions.read_text().replace("dog number 3", "dog number 4", 1))
    with pytest.raises(ValueError, match=r"dev_caps\.txt was changed after its preparation"):
        load("f8k", root=prepared)


def test_judgements_of_people(prepared):
    names = [f"p{i}.jpg" for i in range(10)]
    (prepared / "test_ids.txt").write_text("".join(f"{name}\n" for name in names))
    (prepared / "ExpertAnnotations.txt").write_text("p1.jpg\tp0.jpg#3\t1\t1\t3\np2.jpg\tp2.jpg#0\t4\t4\t3\n")
    (prepared / "CrowdFlowerAnnotations.txt").write_text("p9.jpg\tp8.jpg#4\t0.5\t2\t2\n")
    dataset = load("f8k", root=prepared)
    judged = dataset.test.details["judgements"]
    experts, crowd = judged["experts"], judged["crowd"]
    assert (experts.image.tolist(), experts.caption.tolist()) == ([1, 2], [3, 10])
    assert experts.rating.tolist() == [5 / 3, 11 / 3]
    assert experts.fits.tolist() == [False, True]
    assert (crowd.image.tolist(), crowd.caption.tolist(), crowd.fits.tolist()) == ([9], [44], [True])
    assert "judgements" not in dataset.train.details
    for line in (
        "p9.jpg\tp99.jpg#4\t0.5\t2\t2",
        "p9.jpg\tp8.jpg#5\t0.5\t2\t2",
        "p9.jpg\tp8.jpg#-1\t0.5\t2\t2",
        "p9.jpg\tp8.jpg#4\t0.5\t2",
    ):
        (prepared / "CrowdFlowerAnnotations.txt").write_text(f"{line}\n")
        with pytest.raises(ValueError, match=r"CrowdFlowerAnnotations.txt, line 1: not a judgement of"):
            load("f8k", root=prepared)
    (prepared / "CrowdFlowerAnnotations.txt").write_text("p9.jpg\tp8.jpg#4\tnan\t2\t2\n")
    with pytest.raises(ValueError, match="rating 0 is nan"):
        load("f8k", root=prepared)
