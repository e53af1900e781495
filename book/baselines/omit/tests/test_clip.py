"""The model CLIP: zero-shot as it lies in a folder, what is trained, and small towers from scratch."""

import pytest
import torch
from baselines.omit.pictures import CLIP_COLOURS
from clip_reference import text_states
from local_weights import WORDS, clip_vocabulary, words_file
from local_weights import clip_folder as write_clip
from picture_reference import image_states

from nclib.common.tokens import Tokens
from nclib.models import build

SIZES = {"feature_dim": 24, "vocab_size": 20, "n_regions": 8, "embed_dim": 10}
TOKENS = Tokens(torch.tensor([[1, 7, 3, 2], [1, 5, 2, 0], [1, 9, 11, 2]]), (4, 3, 4))


@pytest.fixture
def folder(tmp_path):
    write_clip(tmp_path)
    return str(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("gelu", ["gelu", "quick_gelu"])
@pytest.mark.parametrize("finetune", ["head", "all"])
def test_untrained_it_is_the_folder(tmp_path, gelu, finetune):
    state = write_clip(tmp_path, gelu=gelu)
    model = build("clip", **SIZES, clip_folder=str(tmp_path), finetune=finetune)
    pictures = torch.rand(2, 8, 8, 3)
    mean, std = map(torch.tensor, CLIP_COLOURS)
    ready = ((pictures - mean) / std).permute(0, 3, 1, 2)
    to_image, to_text = state["visual_projection.weight"].t(), state["text_projection.weight"].t()
    rows = [image_states(state, picture, gelu=gelu)[0] @ to_image for picture in ready]
    ids = [row[:n] for row, n in zip(TOKENS.ids, TOKENS.lengths, strict=True)]
    columns = [text_states(state, row, gelu=gelu)[-1] @ to_text for row in ids]
    wanted = torch.cosine_similarity(torch.stack(rows)[:, None], torch.stack(columns)[None], dim=2)
    got = model(pictures.flatten(2), TOKENS)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(model(pictures.flatten(2), TOKENS, logits=True), got)
    assert model.logit_scale == state["logit_scale"]
    assert model.pair_dim == model.embed_dim == 6


def test_it_is_the_librarys_own_similarity(tmp_path, folder):
    from transformers import CLIPModel

    whole = CLIPModel.from_pretrained(folder, local_files_only=True)
    model = build(
        "clip",
        **SIZES | {"vocab_size": len(WORDS)},
        clip_folder=folder,
        text_words=words_file(tmp_path / "words.json"),
    )
    names = clip_vocabulary()
    pieces = [
        ["<|startoftext|>", "a</w>", "teapot</w>", "<|endoftext|>"],
        ["<|startoftext|>", "<|endoftext|>"],
    ]
    ids = torch.tensor(
        [[names[p] for p in row] + [names["<|endoftext|>"]] * (4 - len(row)) for row in pieces]
    )
    pictures = torch.rand(3, 8, 24)
    with torch.no_grad():
        given = whole(input_ids=ids, pixel_values=model.image_tower.prepare(pictures))
        got = model(pictures, Tokens(torch.tensor([[1, 4, 7, 2], [1, 2, 0, 0]]), (4, 2)))
    torch.testing.assert_close(got, given.logits_per_image / whole.logit_scale.exp(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({"finetune": "head"}, {"image_head", "text_head"}),
        ({"finetune": "all"}, {"image_tower", "captions"}),
        ({}, {"image_tower", "captions"}),
    ],
)
def test_what_is_trained(folder, options, moved):
    options = {**options, "clip_folder": folder} if "finetune" in options else options
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


def test_regions_from_scratch_are_a_set():
    torch.manual_seed(0)
    images, model = torch.rand(2, 8, 24), build("clip", **SIZES)
    shuffled = model.encode_images(images.flip(1)).vectors
    assert torch.allclose(model.encode_images(images).vectors, shuffled, atol=1e-5)


def test_words_from_scratch_are_read_in_order_and_cut_before_the_last():
    torch.manual_seed(0)
    model = build("clip", **SIZES)
    ids = torch.randint(3, 20, (1, 90))
    short = torch.cat([ids[:, :76], ids[:, -1:]], 1)
    got = model.encode_captions(Tokens(ids, (90,))).vectors
    assert torch.equal(got, model.encode_captions(Tokens(short, (77,))).vectors)
    swapped = short.clone()
    swapped[0, [5, 6]] = swapped[0, [6, 5]]
    assert swapped[0, 5] != swapped[0, 6]
    assert not torch.allclose(got, model.encode_captions(Tokens(swapped, (77,))).vectors, atol=1e-5)
    padded = torch.cat([short[:, -5:], torch.full((1, 3), 4)], 1)
    alone = model.encode_captions(Tokens(short[:, -5:], (5,))).vectors
    both = model.encode_captions(Tokens(torch.cat([padded, ids[:, :8]]), (5, 8))).vectors[:1]
    torch.testing.assert_close(both, alone)


def test_errors(tmp_path, folder):
    for options, message in (
        ({"clip_folder": "x"}, "clip_folder='x' is neither a folder with config.json"),
        ({"finetune": "none"}, "finetune='none': must be one of 'head', 'all'"),
        ({"finetune": "all"}, "finetune='all' is used with clip_folder only"),
        ({"text_words": "x"}, "text_words='x' is used with clip_folder only"),
        ({"clip_folder": folder, "width": 64}, "for towers from scratch, not for clip_folder"),
        ({"clip_folder": folder, "text_words": "x"}, "text_words='x' is not a vocabulary file"),
        ({"clip_folder": folder, "vocab_size": 600}, "knows 522 ids and the data has 600; give text_words"),
        (
            {"clip_folder": folder, "feature_dim": 68},
            "feature_dim=68: the model reads pictures.*data_options",
        ),
        ({"width": 100}, "width must be a multiple of 64"),
        ({"layers": 0}, "layers=0: must be a whole number, at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            build("clip", **{**SIZES, **options})
    model = build("clip", **SIZES, clip_folder=folder)
    with pytest.raises(ValueError, match=r"images must be \(batch, 8, .* got \(\d+, 7, "):
        model.encode_images(torch.rand(1, 7, 24))
