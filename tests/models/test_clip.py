"""The model CLIP: zero-shot as it lies in a file, what is trained, and small towers from scratch."""

import pytest
import torch
from clip_reference import image_states, text_states
from local_weights import WORDS, clip_state, merges_file, words_file
from safetensors.torch import save_file

import nclib
from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.clip_file import MEAN, STD

SIZES = {"feature_dim": 24, "vocab_size": 20, "n_regions": 8, "embed_dim": 10}
TOKENS = Tokens(torch.tensor([[1, 7, 3, 2], [1, 5, 2, 0], [1, 9, 11, 2]]), (4, 3, 4))


@pytest.fixture
def file(tmp_path):
    save_file(clip_state(), tmp_path / "clip.safetensors")
    return str(tmp_path / "clip.safetensors")


@pytest.mark.parametrize("gelu", ["exact", "quick"])
@pytest.mark.parametrize("finetune", ["head", "all"])
def test_untrained_it_is_the_file(file, gelu, finetune):
    state = clip_state()
    model = build("clip", **SIZES, clip_file=file, clip_gelu=gelu, finetune=finetune)
    pictures = torch.rand(2, 8, 8, 3)
    ready = ((pictures - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)
    rows = [image_states(state, picture, gelu=gelu)[0] @ state["visual.proj"] for picture in ready]
    ids = [row[:n] for row, n in zip(TOKENS.ids, TOKENS.lengths, strict=True)]
    columns = [text_states(state, row, gelu=gelu)[-1] @ state["text_projection"] for row in ids]
    wanted = torch.cosine_similarity(torch.stack(rows)[:, None], torch.stack(columns)[None], dim=2)
    got = model(pictures.flatten(2), TOKENS)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(model(pictures.flatten(2), TOKENS, logits=True), got)
    assert model.logit_scale == state["logit_scale"]
    assert model.pair_dim == model.embed_dim == 6


def test_words_are_cut_into_pieces(tmp_path, file):
    model = build(
        "clip",
        **SIZES | {"vocab_size": len(WORDS)},
        clip_file=file,
        text_merges=merges_file(tmp_path / "merges.txt"),
        text_words=words_file(tmp_path / "words.json"),
    )
    got = model.encode_captions(Tokens(torch.tensor([[1, 7, 2]]), (3,))).vectors[0]  # <start> teapot <end>
    state = clip_state()
    wanted = text_states(state, torch.tensor([538, 518, 539]))[-1] @ state["text_projection"]
    torch.testing.assert_close(got, wanted / wanted.norm(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({"finetune": "head"}, {"image_head", "text_head"}),
        ({"finetune": "all"}, {"image_tower", "captions"}),
        ({}, {"image_tower", "captions"}),
        ({"patch": 4}, {"image_tower", "captions"}),
    ],
)
def test_what_is_trained(file, options, moved):
    options = {**options, "clip_file": file} if "finetune" in options else options
    torch.manual_seed(0)
    model = build("clip", **SIZES, **options)
    images = torch.rand(3, 8, 24)
    before = {k: v.clone() for k, v in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(10 * model(images, TOKENS), torch.arange(3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    changed = {k.split(".")[0] for k, v in model.named_parameters() if not torch.equal(v, before[k])}
    assert changed == moved
    again = build("clip", **SIZES, **options)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images, TOKENS), model(images, TOKENS))


def test_regions_from_scratch_are_a_set_and_patches_are_not():
    torch.manual_seed(0)
    images = torch.rand(2, 8, 24)
    for options, same in (({}, True), ({"patch": 4}, False)):
        model = build("clip", **SIZES, **options)
        shuffled = model.encode_images(images.flip(1)).vectors
        assert torch.allclose(model.encode_images(images).vectors, shuffled, atol=1e-5) == same


def test_a_run_from_scratch_learns(tmp_path):
    record = nclib.run(
        "plain",
        model="clip",
        dataset="planted",
        mrate=0.0,
        loss="infonce",
        batch_size=16,
        warmup_epochs=0,
        epochs=2,
        data_options={"n_train": 128, "n_val": 20, "n_test": 20},
        model_options={"embed_dim": 32, "width": 64, "layers": 1},
        out=str(tmp_path),
        progress=False,
    )
    chance = 100 * (1 + 5 + 10) * 2 / 20
    assert record.metrics["test"]["rsum"] > 1.5 * chance


def test_errors(tmp_path, file):
    for options, message in (
        ({"clip_file": "x"}, "clip_file='x': there is no such file"),
        ({"finetune": "none"}, "finetune must be one of 'all', 'head', got 'none'"),
        ({"finetune": "all"}, "finetune='all' is used with clip_file only"),
        ({"clip_gelu": "quick"}, "clip_gelu='quick' is used with clip_file only"),
        ({"text_words": "x"}, "text_words='x' is used with clip_file only"),
        ({"clip_file": file, "patch": 4}, "for towers from scratch, not for clip_file"),
        ({"clip_file": file, "width": 64}, "for towers from scratch, not for clip_file"),
        ({"clip_file": file, "text_words": "x"}, "text_merges='' and text_words='x': give both"),
        ({"clip_file": file, "feature_dim": 68}, "feature_dim=68: CLIP reads pictures.*data_options"),
        ({"patch": 4, "feature_dim": 68}, "feature_dim=68: CLIP reads pictures.*data_options"),
        ({"width": 100}, "width must be a multiple of 64"),
        ({"patch": -1}, "patch=-1"),
        ({"patch": 9}, "patch=9 is larger than a picture, whose shorter side is 8"),
        ({"layers": 0}, "layers must be a positive integer"),
    ):
        with pytest.raises(ValueError, match=message):
            build("clip", **{**SIZES, **options})
    model = build("clip", **SIZES, clip_file=file)
    with pytest.raises(ValueError, match=r"images have 7 regions.*n_regions=8"):
        model.encode_images(torch.rand(1, 7, 24))
    save_file({**clip_state(), "text_projection": torch.zeros(64, 7)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="embeddings are 6 wide for images and 7 for text"):
        build("clip", **SIZES, clip_file=str(tmp_path / "other.safetensors"))
