"""Embeddings of pairs: those given, by CLIP and SigLIP, and by models trained on the pairs."""

import json
import re

import local_weights
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import nclib
from nclib.auditing import crossfit, embed
from nclib.auditing.embed import read_pairs
from nclib.models.two_towers import TwoTowers
from nclib.readers import listing


@pytest.fixture
def photographs(tmp_path):
    """Ten pictures with a caption each; one is broken, one is missing, one has no caption."""
    rng, rows = np.random.default_rng(0), ["image,caption"]
    for i in range(10):
        Image.fromarray(rng.integers(0, 255, (20, 16 + i, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,a red tea pot number {i}")
    (tmp_path / "3.png").write_bytes(b"broken")
    (tmp_path / "5.png").unlink()
    rows[8] = "7.png,"
    rows.append(f"9.png,{'a long caption ' * 200}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    return tmp_path / "t.csv"


def preprocessor(folder, **more):
    size = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
    (folder / "preprocessor_config.json").write_text(json.dumps({**size, **more}))


@pytest.fixture
def clip(tmp_path):
    folder = tmp_path / "clip"
    local_weights.clip_folder(folder)
    preprocessor(folder, image_processor_type="CLIPImageProcessor")
    return folder


@pytest.fixture
def siglip(tmp_path):
    from transformers import SiglipConfig, SiglipModel

    folder = tmp_path / "siglip"
    vocabulary = local_weights.clip_vocabulary()
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {
        "model_type": "siglip",
        "text_config": {**tower, "vocab_size": len(vocabulary), "max_position_embeddings": 10},
        "vision_config": {**tower, "image_size": 8, "patch_size": 4},
    }
    local_weights.write(
        folder, config, local_weights.drawn(local_weights.shapes_of(SiglipModel(SiglipConfig(**config))))
    )
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *local_weights.MERGES]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    preprocessor(folder, image_processor_type="SiglipImageProcessor", size={"height": 8, "width": 8})
    return folder


# -- pretrained ---------------------------------------------------------------------------------------------


def test_the_adapter_agrees_with_the_library(clip):
    from transformers import CLIPModel

    model, towers = CLIPModel.from_pretrained(clip).eval(), TwoTowers(str(clip))
    image = Image.new("RGB", (8, 8), (10, 200, 30))
    pixels = (
        torch.tensor([10, 200, 30]) / 255 - torch.tensor([0.48145466, 0.4578275, 0.40821073])
    ) / torch.tensor([0.26862954, 0.26130258, 0.27577711])
    with torch.no_grad():
        expected = model.visual_projection(
            model.vision_model(pixels[None, :, None, None].expand(1, 3, 8, 8)).pooler_output
        )
    assert torch.allclose(towers.pictures([image]), expected, atol=1e-5)
    short, long = towers.captions(["tea pot", "tea pot " * 50])
    assert torch.isfinite(long).all()
    assert torch.allclose(towers.captions(["tea pot"])[0], short, atol=1e-5)  # padding changes nothing


def test_a_stopped_embedding_continues(photographs, clip, tmp_path, monkeypatch):
    monkeypatch.setattr("nclib.common.row_writer.BLOCK", 4)
    work, opened = tmp_path / "work", []
    whole = read_pairs(photographs, model=clip, work=tmp_path / "other")
    real = listing.open_picture

    def stops(file):
        opened.append(file.name)
        if file.name == "6.png" and opened.count("6.png") == 1:
            raise KeyboardInterrupt
        return real(file)

    monkeypatch.setattr(listing, "open_picture", stops)
    with pytest.raises(KeyboardInterrupt):
        read_pairs(photographs, model=clip, work=work)
    pairs = read_pairs(photographs, model=clip, work=work)
    assert opened.count("0.png") == 1
    assert np.array_equal(pairs.images, whole.images)
    opened.clear()
    read_pairs(photographs, model=clip, work=work)
    assert set(opened) == {"3.png", "5.png"}  # asked again for the reason only


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_changed_pictures_and_damaged_embeddings_are_embedded_again(photographs, kind, tmp_path, request):
    model = request.getfixturevalue(kind)
    before = np.array(read_pairs(photographs, model=model, work=tmp_path / "work").images)
    (path,) = (tmp_path / "work").glob("pictures-*.npy")
    content = bytearray(path.read_bytes())
    content[-7] ^= 64
    path.write_bytes(content)
    assert np.array_equal(read_pairs(photographs, model=model, work=tmp_path / "work").images, before)
    Image.new("RGB", (30, 30), (1, 2, 3)).save(tmp_path / "0.png")
    assert not np.allclose(before[0], read_pairs(photographs, model=model, work=tmp_path / "work").images[0])


# -- fitted to the pairs ------------------------------------------------------------------------------------


def planted(n, each, seed=0):
    """Pictures of which each shows two of six things, with captions that name them."""
    rng = np.random.default_rng(seed)
    things = np.stack([rng.permutation(6)[:2] for _ in range(n)])
    features = np.zeros((n, 6), np.float32)
    np.put_along_axis(features, things, 1, axis=1)
    features += 0.3 * rng.normal(size=features.shape).astype(np.float32)
    names = np.array(["dog", "cat", "car", "tree", "boat", "house"])
    of = np.repeat(np.arange(n), each)
    return features, [f"a {names[a]} and a {names[b]}" for a, b in things[of]], of


def test_copies_of_a_picture_share_a_fold():
    features, texts, of = planted(80, 1)
    texts = [f"{text} {i}" for i, text in enumerate(texts)] * 3
    features = np.tile(features, (3, 1))
    features[160:] *= 1.001  # stored again
    of = np.arange(240)
    _, captions = crossfit.crossfit(features, texts, of, np.ones(240, bool))
    fold = np.abs(captions.reshape(3, 80, 2, -1)).sum(3).argmax(2)
    assert (fold == fold[0]).all()
    assert fold.any()


def test_wrong_captions_score_lower_in_every_fold():
    features, texts, of = planted(200, 1)
    wrong = np.arange(200) < 40
    texts[:40] = texts[39::-1]
    images, captions = crossfit.crossfit(features, texts, of, np.ones(200, bool))
    score = (images[of] * captions).sum(1)
    fold = np.abs(captions.reshape(200, 2, -1)).sum(2).argmax(1)
    rng = np.random.default_rng(0)
    for k in range(2):
        mine = fold == k
        assert score[mine & ~wrong].mean() > score[mine & wrong].mean() + 1
        exchanged = (images[rng.permutation(of[mine])] * captions[mine]).sum(1)
        assert abs(exchanged.mean()) < 0.25
        assert 0.75 < exchanged.std() < 1.25  # the same in both folds: their scores can be compared


def test_captions_without_a_known_word_are_not_called_wrong():
    features, texts, _ = planted(150, 1)
    texts[:30] = [f"qz{i} xw{i}" for i in range(30)]
    pairs = read_pairs(pd.DataFrame({"image": range(150), "caption": texts}), image_emb=features)
    assert pairs.problems == dict.fromkeys(range(30), embed.UNREAD)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (3e38, r"of numbers up to 3e\+38, too large or too small to be squared"),
        (1e25, r"of numbers up to 1e\+25, too large"),
        (-1e15, r"\S+e\+14 times as long as those of most pictures"),
        (np.nan, "NaN"),
    ],
)
def test_one_huge_number_takes_one_pair_out_and_not_all(tmp_path, value, reason):
    features, texts, _ = planted(150, 1)
    features[17, 3] = value
    frame = pd.DataFrame({"image": [f"{i}.png" for i in range(150)], "caption": texts})
    frame.to_csv(tmp_path / "t.csv", index=False)
    pairs = read_pairs(tmp_path / "t.csv", image_emb=features, work=tmp_path, progress=False)
    assert pairs.problems.keys() == {17}
    assert re.match(f"the features of the picture are {reason}", pairs.problems[17])
    assert np.flatnonzero(~pairs.usable).tolist() == np.flatnonzero(~pairs.usable_images).tolist() == [17]
    with pytest.raises(ValueError, match=r"none of the 150 pairs can be used; the first: .* are infinite"):
        read_pairs(tmp_path / "t.csv", image_emb=features + np.inf, work=tmp_path)


def test_features_of_pictures_without_any_model(tmp_path, monkeypatch, capsys):
    def colours(pixels):
        """Stand in for the network: mean colours in 1,280 channels."""
        means = pixels.reshape(-1, 3, 7, 32, 7, 32).mean((3, 5))
        return np.tile(means, (1, 427, 1, 1))[:, : embed.CHANNELS]

    monkeypatch.setattr(embed, "load_network", lambda: colours)
    monkeypatch.setattr(embed, "require", lambda what, *packages: None)
    rows = ["image,caption"]
    for i in range(44):
        Image.new("RGB", (8, 8), (255 * (i % 2), 255 * (i % 3 == 0), 5 * i)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{'red' if i % 2 else 'black'} and {'green' if i % 3 == 0 else 'none'}")
    (tmp_path / "42.png").unlink()
    (tmp_path / "43.png").write_bytes(b"")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    audit = nclib.audit(tmp_path / "t.csv", work=tmp_path / "work", progress=False)
    pairs = audit.pairs
    assert pairs.problems == {
        42: "the picture is missing",
        43: "the file is not a picture in JPEG, PNG, WEBP, GIF, BMP or TIFF",
    }
    assert np.isfinite(pairs.images).all()
    assert not pairs.captions[42:].any()
    # Two pictures that could not be read are not the same picture, and no caption's partner.
    assert not pairs.usable_images[42:].any()
    assert not audit.table["image_duplicate_of"][42:].any()
    assert list((tmp_path / "work").glob("features-*.npy"))
    said = capsys.readouterr()
    assert said.out == ""
    assert "reading the pictures: 100%" in said.err
