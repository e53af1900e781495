"""Raw images: equal to the network written out, files of several kinds, and what is refused."""

import pytest
import torch
import torch.nn.functional as F
from local_weights import resnet_state
from safetensors.torch import save_file

import nclib
from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.pixels import PixelEncoder


def norm(state, name, x):
    keys = ("running_mean", "running_var", "weight", "bias")
    return F.batch_norm(x, *(state[f"{name}.{key}"] for key in keys), training=False)


def block(state, name, x, stride):
    """One residual block, written out."""
    shortcut = x
    if f"{name}.downsample.0.weight" in state:
        shortcut = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
        shortcut = norm(state, f"{name}.downsample.1", shortcut)
    first, second = state[f"{name}.conv1.weight"], state[f"{name}.conv2.weight"]
    if f"{name}.conv3.weight" in state:
        y = torch.relu(norm(state, f"{name}.bn1", F.conv2d(x, first)))
        groups = y.shape[1] // second.shape[1]
        y = F.conv2d(y, second, stride=stride, padding=1, groups=groups)
        y = F.conv2d(torch.relu(norm(state, f"{name}.bn2", y)), state[f"{name}.conv3.weight"])
        return torch.relu(norm(state, f"{name}.bn3", y) + shortcut)
    y = torch.relu(norm(state, f"{name}.bn1", F.conv2d(x, first, stride=stride, padding=1)))
    return torch.relu(norm(state, f"{name}.bn2", F.conv2d(y, second, padding=1)) + shortcut)


def written_out(state, blocks, pictures):
    """Last feature map of pictures (B, height, width, 3)."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = ((pictures - mean) / std).permute(0, 3, 1, 2)
    x = torch.relu(norm(state, "bn1", F.conv2d(x, state["conv1.weight"], stride=2, padding=3)))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, n in enumerate(blocks, start=1):
        for i in range(n):
            x = block(state, f"layer{stage}.{i}", x, 2 if i == 0 and stage > 1 else 1)
    return x


KINDS = [{}, {"blocks": (2, 1, 2, 1)}, {"bottleneck": True}, {"bottleneck": True, "groups": 2}]


@pytest.mark.parametrize("kind", KINDS, ids=["basic", "deeper", "bottleneck", "groups"])
def test_equals_the_network_written_out(tmp_path, kind):
    state = resnet_state(**kind)
    save_file(state, tmp_path / "net.safetensors")
    torch.save(state, tmp_path / "net.pth")
    pictures = torch.rand(2, 40, 65, 3)
    wanted = written_out(state, kind.get("blocks", (1, 1, 1, 1)), pictures)
    for name in ("net.safetensors", "net.pth"):
        model = PixelEncoder(65 * 3, 40, file=str(tmp_path / name))
        got = model(pictures.flatten(2))
        assert got.shape == (2, model.n_cells, model.width) == (2, 2 * 3, wanted.shape[1])
        torch.testing.assert_close(got, wanted.flatten(2).transpose(1, 2), rtol=1e-5, atol=1e-5)
        assert not got.requires_grad


def test_statistics_stay_when_the_network_is_trained(tmp_path):
    save_file(resnet_state(), tmp_path / "net.safetensors")
    model = PixelEncoder(96, 32, file=str(tmp_path / "net.safetensors"), finetune=True).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    model(torch.rand(3, 32, 96)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize("name", ["vse", "vse_inf", "scan", "imram", "saf"])
def test_models_read_pictures(tmp_path, name):
    save_file(resnet_state(), tmp_path / "net.safetensors")
    model = build(
        name,
        feature_dim=64 * 3,
        vocab_size=9,
        n_regions=33,
        embed_dim=6,
        sim_dim=4,
        word_dim=3,
        image="pixels",
        image_file=str(tmp_path / "net.safetensors"),
    )
    pictures = torch.rand(3, 33, 64 * 3)
    scores = model(pictures, Tokens(torch.randint(1, 9, (2, 4)), (4, 3)))
    assert scores.shape == (3, 2)
    scores.sum().backward()
    trained = {key.split(".")[0] for key, p in model.named_parameters() if p.grad is not None}
    assert "image_encoder" in trained
    assert "pixels" not in trained
    with pytest.raises(ValueError, match=r"images have 32 regions.*n_regions=33"):
        model.encode_images(pictures[:, :32])


def test_errors(tmp_path):
    state = resnet_state()
    file = tmp_path / "net.safetensors"
    with pytest.raises(ValueError, match="there is no such file"):
        PixelEncoder(96, 32, file=str(file))
    save_file({"weight": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="no residual network in torchvision's layout"):
        PixelEncoder(96, 32, file=str(file))
    save_file({k: v for k, v in state.items() if k != "layer3.0.bn2.bias"}, file)
    with pytest.raises(ValueError, match=r"'layer3\.0\.bn2\.bias' is missing or has another shape"):
        PixelEncoder(96, 32, file=str(file))
    with pytest.raises(ValueError, match="three numbers per pixel"):
        PixelEncoder(97, 32, file=str(file))
    sizes = {"feature_dim": 96, "vocab_size": 9, "embed_dim": 6}
    with pytest.raises(ValueError, match="image='pixels' needs image_file"):
        build("vse", **sizes, image="pixels")
    with pytest.raises(ValueError, match="image_file='x' is used with image='pixels' or 'clip' only"):
        build("vse", **sizes, image_file="x")
    with pytest.raises(ValueError, match="text='transformer' needs text_folder"):
        build("vse", **sizes, text="transformer")
    with pytest.raises(ValueError, match="text_folder='x' is used with text='transformer' only"):
        build("scan", **sizes, text_folder="x")
    with pytest.raises(ValueError, match="text_words='x' is used with text='transformer' or 'clip' only"):
        build("imram", **sizes, text_words="x")
    with pytest.raises(ValueError, match="text must be one of 'bigru', 'clip', 'transformer', got 'gpt'"):
        build("sgraf", **sizes, text="gpt")


def test_a_run_from_pictures_with_weights_from_a_file(tmp_path):
    file = tmp_path / "resnet.safetensors"
    save_file(resnet_state(), file)
    record = nclib.run(
        "plain",
        model="vse",
        data_options={"features": "pixels", "size": "small", "n_train": 64, "n_val": 8, "n_test": 10},
        model_options={"image": "pixels", "image_file": str(file), "finetune": True},
        epochs=1,
        warmup_epochs=0,
        batch_size=32,
        out=str(tmp_path / "runs"),
        progress=False,
    )
    assert record.metrics["test"]["rsum"] > 0
    trainer = nclib.open_run(record).trainer
    stem = trainer.networks[0].pixels.state_dict()
    assert not torch.equal(stem["conv1.weight"].cpu(), resnet_state()["conv1.weight"])  # it was trained
