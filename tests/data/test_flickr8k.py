"""The data set f8k: what its checksum covers, and what is refused."""

import json

import numpy as np
import pytest

import nclib
from nclib.common.row_writer import RowSource
from nclib.data import flickr8k, load
from nclib.data.prepare import Selection, write_splits


def write(folder, scale=1.0, **manifest):
    """Write a small folder as ``nclib data prepare f8k`` leaves it."""
    rng, sizes = np.random.default_rng(0), {"train": 30, "dev": 10, "test": 10}
    rows = {split: rng.normal(size=(n, 16, 256)).astype(np.float32) for split, n in sizes.items()}
    texts = {split: [f"a dog number {i % 7} runs" for i in range(5 * n)] for split, n in sizes.items()}
    plan = Selection({split: [f"p{i}.jpg" for i in range(n)] for split, n in sizes.items()}, texts, 5, {})
    sources = {
        split: RowSource(found.shape, np.float32, lambda a, b, x=found: x[a:b] * np.float32(scale), [scale])
        for split, found in rows.items()
    }
    about = {"recipe": "r", "content": "c", **plan.facts(), **manifest}
    write_splits(folder, plan, sources, about, "f8k_precomp_vocab.json")


@pytest.fixture
def prepared(tmp_path):
    write(tmp_path)
    return tmp_path


def change(folder, **values):
    path = folder / "prepared.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_shape_and_checksum(prepared, monkeypatch):
    dataset = load("f8k", root=prepared)
    assert (dataset.train.n_images, dataset.n_regions, dataset.feature_dim) == (30, 16, 256)
    monkeypatch.setattr(flickr8k, "RECORDED", json.loads((prepared / "prepared.json").read_text())["summary"])
    recorded = load("f8k", root=prepared).checksum
    assert recorded != dataset.checksum  # features of another size than the recorded ones
    write(prepared, 1 + 2e-6)  # rounded elsewhere
    assert load("f8k", root=prepared).checksum == recorded
    write(prepared, content="other captions")
    assert load("f8k", root=prepared).checksum != recorded


def test_a_record_states_the_bits_of_its_features(prepared):
    """Features that were rounded elsewhere have the same checksum, and other numbers come of them."""
    data = {"dataset": "f8k", "model": "bow", "data_options": {"root": str(prepared)}}
    how = {"batch_size": 16, "epochs": 1, "warmup_epochs": 0, "out": prepared / "runs", "progress": False}
    record = nclib.run("plain", **data, **how)
    assert record.data["content"] == load("f8k", root=prepared).details["content"] != record.data["checksum"]
    assert list(nclib.table(prepared / "runs")["data.content"]) == [record.data["content"]]


def test_changed_or_unfinished_files_are_refused(prepared):
    def refused(said):
        with pytest.raises(ValueError, match=said):
            load("f8k", root=prepared)

    change(prepared, finished=False)
    refused(r"holds no finished prepared\.json")
    change(prepared, finished=True)
    features, captions = prepared / "train_ims.npy", prepared / "dev_caps.txt"
    whole, last = features.read_bytes(), np.load(features)
    last[29, 15, 255] += 1  # one number of 122,880
    np.save(features, last)
    refused(r"train_ims\.npy was changed after its preparation")
    features.write_bytes(whole)
    captions.write_text(captions.read_text().replace("dog number 3", "dog number 4", 1))
    refused(r"dev_caps\.txt was changed after its preparation")


def test_judgements_of_people(prepared):
    crowdsourced = prepared / "CrowdFlowerAnnotations.txt"
    (prepared / "ExpertAnnotations.txt").write_text("p1.jpg\tp0.jpg#3\t1\t1\t3\np2.jpg\tp2.jpg#0\t4\t4\t3\n")
    crowdsourced.write_text("p9.jpg\tp8.jpg#4\t0.5\t2\t2\n")
    dataset = load("f8k", root=prepared)
    judged = dataset.test.details["judgements"]
    experts, crowd = judged["experts"], judged["crowd"]
    assert (experts.image.tolist(), experts.caption.tolist()) == ([1, 2], [3, 10])
    assert (experts.rating.tolist(), experts.fits.tolist()) == ([5 / 3, 11 / 3], [False, True])
    assert (crowd.image.tolist(), crowd.caption.tolist(), crowd.fits.tolist()) == ([9], [44], [True])
    assert "judgements" not in dataset.train.details
    for said in ("p99.jpg#4\t0.5\t2\t2", "p8.jpg#5\t0.5\t2\t2", "p8.jpg#-1\t0.5\t2\t2", "p8.jpg#4\t0.5\t2"):
        crowdsourced.write_text(f"p9.jpg\t{said}\n")
        with pytest.raises(ValueError, match=r"CrowdFlowerAnnotations.txt, line 1: not a judgement"):
            load("f8k", root=prepared)
    crowdsourced.write_text("p9.jpg\tp8.jpg#4\tnan\t2\t2\n")
    with pytest.raises(ValueError, match="rating 0 is nan"):
        load("f8k", root=prepared)
