"""Tests of the audit with cleanlab, datasets and the extra ``pictures``; run by ``make ecosystem``."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import cleanlab
import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw
from sklearn.metrics import roc_auc_score

import nclib
from nclib.auditing import datalab
from nclib.readers import list_pairs
from nclib.readers.network import load_network, mean_maps

N = 200
datalab.register()


def pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return embeddings of pictures and captions, and which of the captions are wrong."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(N, 32)).astype(np.float32)
    order = np.arange(N)
    order[:40] = np.roll(order[:40], 7)
    captions = (images + 0.6 * rng.normal(size=(N, 32))).astype(np.float32)[order]
    return images, captions, order != np.arange(N)


def dataset() -> datasets.Dataset:
    """Return the same pairs as pictures and captions, with a column of their own."""

    def bytes_of(i: int) -> bytes:
        Image.new("RGB", (6, 5), (i, 0, 0)).save(out := io.BytesIO(), "PNG")
        return out.getvalue()

    columns = {
        "image": [{"bytes": bytes_of(i), "path": None} for i in range(N)],
        "text": [f"picture {i}" for i in range(N)],
        "language": ["de", "en"] * (N // 2),
    }
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())


def test_datalab_finds_wrong_captions() -> None:
    images, captions, wrong = pairs()
    lab = cleanlab.Datalab(data={"caption": [str(i) for i in range(N)]}, verbosity=0)
    lab.find_issues(issue_types={"image_caption": {"images": images, "captions": captions}})
    found = lab.get_issues("image_caption")
    audit = nclib.audit(images=images, captions=captions, progress=False)
    np.testing.assert_allclose(found["image_caption_score"], 1 - audit.table["p_wrong"])
    assert (found["is_image_caption_issue"].to_numpy() == wrong).mean() > 0.95
    assert (
        lab.get_issue_summary("image_caption")["num_issues"].item() == found["is_image_caption_issue"].sum()
    )
    assert lab.get_info("image_caption")["share"] == audit.share.value
    lab.report()


def test_datalab_takes_a_finished_audit_of_the_same_pairs_only() -> None:
    images, captions, _ = pairs()
    captions[3] = np.nan
    audit = nclib.audit(images=images, captions=captions, progress=False)
    for n in (N, N - 1):
        lab = cleanlab.Datalab(data={"caption": [str(i) for i in range(n)]}, verbosity=0)
        lab.find_issues(issue_types={"image_caption": {"audited": audit}})
        issues = lab.issues
        assert ("image_caption_score" in issues) == (n == N)  # the library prints the error and goes on
        if n == N:
            assert issues["image_caption_score"][3] == 0.5


def test_a_data_set_is_audited_and_comes_back_without_wrong_pairs(tmp_path: Path) -> None:
    images, captions, wrong = pairs()
    whole = dataset()
    audit = nclib.audit(whole, image_emb=images, text_emb=captions, progress=False, by="language")
    assert audit.by["pairs"].tolist() == [100, 100]
    assert audit._repr_html_().count("data:image/jpeg") == 12
    right = audit.select(whole)
    assert len(right) == audit.kept.sum()
    assert right.features["image"] == datasets.Image()
    np.testing.assert_allclose(right["p_wrong"], audit.table["p_wrong"][audit.kept])
    marks = pd.DataFrame({"id": audit.pairs.ids[:1], "label": [""], "new_caption": ["mine"]})
    assert audit.tell(marks).select(whole)["text"][0] == "mine"
    right.save_to_disk(tmp_path / "right")
    again = list_pairs(tmp_path / "right")
    assert again.texts == [f"picture {i}" for i in np.flatnonzero(audit.kept)]
    assert again.columns is not None
    assert list(again.columns) == ["language", "p_wrong"]
    assert again.open(5).getpixel((0, 0)) == (int(np.flatnonzero(audit.kept)[5]), 0, 0)
    assert wrong[~audit.kept].mean() > 0.9


def test_a_picture_in_a_data_set_is_opened_in_known_formats_only() -> None:
    Image.new("RGB", (6, 5)).save(eps := io.BytesIO(), "EPS")
    columns = {"image": [{"bytes": eps.getvalue(), "path": None}], "text": ["one"]}
    listing = list_pairs(datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image()))
    with pytest.raises(ValueError, match="not a picture in JPEG"):
        listing.open(0)


SHADES = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple"]


def test_drawn_pictures_are_audited_without_torch(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), []
    for i in range(300):
        ground, shade = rng.choice(SHADES, 2, replace=False).tolist()
        shape = ["circle", "square"][int(rng.integers(2))]
        picture = Image.new("RGB", (160, 160), ground)
        (x, y), size = rng.integers(50, 110, 2).tolist(), int(rng.integers(20, 45))
        draw = ImageDraw.Draw(picture)
        paint = draw.ellipse if shape == "circle" else draw.rectangle
        paint((x - size, y - size, x + size, y + size), fill=shade)
        picture.save(tmp_path / f"{i}.png")
        rows.append(f"a {shade} {shape} on {ground} ground")
    order = np.arange(300)
    order[:45] = np.roll(order[:45], 1)
    table = pd.DataFrame({"image": [f"{i}.png" for i in order], "caption": rows})
    table.to_csv(tmp_path / "captions.csv", index=False)
    wrong = np.array(rows) != np.array(rows)[order]
    command = [sys.executable, "-m", "nclib", "audit", "captions.csv", "--images", ".", "--out", "report"]
    hidden = {**os.environ, "PYTHONPATH": str(tmp_path / "hidden"), "NCLIB_CACHE": str(tmp_path / "cache")}
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/torch.py").write_text("raise ModuleNotFoundError('torch is hidden', name='torch')")
    subprocess.run(command, cwd=tmp_path, env=hidden, check=True)
    made = pd.read_csv(tmp_path / "report/pairs.csv")
    assert roc_auc_score(wrong, made["p_wrong"]) > 0.95


def test_the_network_is_that_of_its_authors() -> None:
    """The means by efficientnet_lite_pytorch 0.1.0 and torch 2.13 of a picture of two ramps."""
    x, y = np.meshgrid(np.arange(224), np.arange(224))
    picture = Image.fromarray(np.stack([x, y, 223 - x], 2).astype(np.uint8))
    means = mean_maps(load_network())([picture])[0]
    assert means.shape == (1280,)
    largest = np.argsort(-means)[:3]
    assert largest.tolist() == [113, 930, 897]
    np.testing.assert_allclose(means[largest], [5.10706, 4.59935, 4.47586], atol=1e-4)
    np.testing.assert_allclose(means.sum(), 124.0056, atol=1e-2)
