"""Pretrained readers of pictures: equal to the networks written out, and to Pillow's scaling."""

import re
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baselines.omit.pictures import CLIP_COLOURS, IMAGENET, Pictures, PretrainedCells
from local_weights import WORDS, bert_folder, clip_folder
from local_weights import words_file as write_words
from picture_reference import image_states, resnet_folder
from PIL import Image

from nclib.common.tokens import Tokens
from nclib.models import build

IDS = torch.tensor([[1, 4, 6, 8, 2, 0], [1, 5, 9, 7, 4, 2], [1, 3, 2, 0, 0, 0]])
TOKENS = Tokens(IDS, (5, 6, 3))


@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize("gelu", ["gelu", "quick_gelu"])
def test_patches_equal_clips_tower_written_out(tmp_path, gelu, finetune):
    state = clip_folder(tmp_path, gelu=gelu)
    model = PretrainedCells(3 * 8, 8, kind="clip", folder=str(tmp_path), finetune=finetune)
    pictures = torch.rand(2, 8, 8, 3)
    got = model(pictures.flatten(2))
    assert got.shape == (2, model.n_cells, model.width) == (2, 4, 128)
    assert got.requires_grad == finetune
    mean, std = map(torch.tensor, CLIP_COLOURS)
    ready = ((pictures - mean) / std).permute(0, 3, 1, 2)
    wanted = torch.stack([image_states(state, picture, gelu=gelu) for picture in ready])
    torch.testing.assert_close(got, wanted[:, 1:], rtol=1e-4, atol=1e-5)


def norm(state, name, x):
    keys = ("running_mean", "running_var", "weight", "bias")
    return F.batch_norm(x, *(state[f"{name}.normalization.{key}"] for key in keys), training=False)


def convolution(state, name, x, stride):
    weight = state[f"{name}.convolution.weight"]
    return norm(state, name, F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2))


def block(state, name, x, stride):
    """One residual block, written out: the 3x3 convolution takes the stride, of two of them the first."""
    shortcut = x
    if f"{name}.shortcut.convolution.weight" in state:
        shortcut = convolution(state, f"{name}.shortcut", x, stride)
    layers = sum(bool(re.fullmatch(re.escape(name) + r"\.layer\.\d\.convolution\.weight", k)) for k in state)
    for i in range(layers):
        x = convolution(state, f"{name}.layer.{i}", x, stride if i == layers - 2 else 1)
        x = torch.relu(x) if i < layers - 1 else x
    return torch.relu(x + shortcut)


def written_out(state, blocks, pictures, colours=IMAGENET):
    """Last feature map of pictures (B, height, width, 3)."""
    mean, std = map(torch.tensor, colours)
    x = ((pictures - mean) / std).permute(0, 3, 1, 2)
    x = F.max_pool2d(torch.relu(convolution(state, "embedder.embedder", x, 2)), 3, 2, 1)
    for stage, n in enumerate(blocks):
        for i in range(n):
            x = block(state, f"encoder.stages.{stage}.layers.{i}", x, 2 if i == 0 and stage else 1)
    return x


@pytest.mark.parametrize("kind", [{}, {"blocks": (2, 1, 2, 1)}, {"bottleneck": True}])
@pytest.mark.parametrize("colours", [None, ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])])
def test_cells_equal_the_residual_network_written_out(tmp_path, kind, colours):
    state = resnet_folder(tmp_path, **kind, colours=colours)
    pictures = torch.rand(2, 40, 65, 3)
    wanted = written_out(state, kind.get("blocks", (1, 1, 1, 1)), pictures, colours or IMAGENET)
    model = PretrainedCells(65 * 3, 40, kind="resnet", folder=str(tmp_path))
    got = model(pictures.flatten(2))
    assert got.shape == (2, model.n_cells, model.width) == (2, 2 * 3, wanted.shape[1])
    torch.testing.assert_close(got, wanted.flatten(2).transpose(1, 2), rtol=1e-4, atol=1e-4)
    assert not got.requires_grad


def test_statistics_stay_when_the_network_is_trained(tmp_path):
    resnet_folder(tmp_path)
    model = PretrainedCells(96, 32, kind="resnet", folder=str(tmp_path), finetune=True).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    model(torch.rand(3, 32, 96)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_pictures_are_scaled_and_cut_as_by_pillow():
    bytes_ = np.random.default_rng(0).integers(70, 190, (40, 57, 3), np.uint8)
    for size in (8, 21, 64):
        wide = size * 57 // 40
        left = round((wide - size) / 2)
        scaled = Image.fromarray(bytes_).resize((wide, size), Image.Resampling.BICUBIC)
        wanted = torch.from_numpy(np.array(scaled)[:, left : left + size] / 255.0)
        ready = Pictures(57 * 3, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), size)
        got = ready(torch.from_numpy(bytes_ / 255.0).flatten(1)[None])[0].permute(1, 2, 0)
        assert (got - wanted).abs().max() < 1.6 / 255  # Pillow rounds to bytes, twice
    same = torch.rand(1, 8, 24)
    assert torch.equal(Pictures(24, (0.0,) * 3, (1.0,) * 3, 8)(same)[0, 1], same[0, :, 1::3])


@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize("image", ["clip", "resnet"])
@pytest.mark.parametrize("name", ["vse", "vse_inf", "scan", "imram", "sgr", "saf", "sgraf", "sbe"])
def test_models_train_on_them_and_come_back(tmp_path, name, image, finetune):
    text = {"clip": "bert", "resnet": "clip"}[image]
    for kind in ("bert", "clip", "resnet"):
        (tmp_path / kind).mkdir()
    bert_folder(tmp_path / "bert")
    clip_folder(tmp_path / "clip")
    resnet_folder(tmp_path / "resnet")
    options = {
        "feature_dim": 45 * 3,
        "vocab_size": len(WORDS),
        "n_regions": 35,
        "embed_dim": 8,
        "sim_dim": 4,
        "image": image,
        "image_folder": str(tmp_path / image),
        "text": text,
        "text_folder": str(tmp_path / text),
        "text_words": write_words(tmp_path / "words.json"),
        "finetune": finetune,
    }
    torch.manual_seed(0)
    model = build(name, **options)
    before = {k: v.clone() for k, v in model.named_parameters()}
    pictures = torch.rand(3, 35, 135)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    scores = model(pictures, TOKENS, logits=True)
    assert scores.shape == (3, 3)
    (scores - 3 * torch.eye(3)).square().sum().backward()
    optimizer.step()
    moved = {k for k, v in model.named_parameters() if not torch.equal(v, before[k])}
    for tower in (r"pixels\.tower", r"text_encoder\.tower"):
        assert any(re.search(tower, k) for k in moved) == finetune
    assert any("image_encoder" in k for k in moved)
    assert any("text_encoder.fc" in k for k in moved)
    again = build(name, **options)
    again.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    wanted = model.eval()(pictures, TOKENS)
    torch.manual_seed(1)
    assert torch.equal(again.eval()(pictures, TOKENS), wanted)
    longer = Tokens(torch.cat([IDS, IDS[:, :1]], 1), TOKENS.lengths)
    torch.testing.assert_close(model(pictures, longer), model(pictures, TOKENS))
    with pytest.raises(ValueError, match=r"images must be \(batch, 35, .* got \(\d+, 32, "):
        model.encode_images(pictures[:, :32])


def test_what_is_refused(tmp_path, monkeypatch):
    resnet_folder(tmp_path)
    with pytest.raises(ValueError, match="three numbers per pixel"):
        PretrainedCells(2048, 36, kind="resnet", folder=str(tmp_path))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match="clip_folder needs the library transformers"):
        build("clip", feature_dim=24, vocab_size=9, n_regions=8, clip_folder=str(tmp_path))
    assert build("clip", feature_dim=24, vocab_size=9, embed_dim=4, width=64, layers=1).pair_dim == 4
