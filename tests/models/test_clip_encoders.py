"""CLIP's towers from a file: equal to torch's own layers, byte pairs, and what is refused."""

import gzip
import json
import re
import zipfile
from itertools import chain

import pytest
import torch
from clip_reference import image_states, text_states
from local_weights import MERGES, WORDS, clip_state, merges_file, words_file
from safetensors.torch import save_file

from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.bpe import BytePairs, byte_characters, split_text
from nclib.models.clip_encoders import ClipPatches, ClipTextEncoder, Pictures
from nclib.models.clip_file import MEAN, STD, read_clip


@pytest.fixture
def file(tmp_path):
    save_file(clip_state(), tmp_path / "clip.safetensors")
    return str(tmp_path / "clip.safetensors")


def text_encoder(folder, file, **options):
    torch.manual_seed(0)
    options = {
        "unit": False,
        "merges": merges_file(folder / "merges.txt"),
        "words_file": words_file(folder / "words.json"),
        **options,
    }
    return ClipTextEncoder(len(WORDS), 5, file=file, **options)


# ------------------------------------------------------------------------------------------- the towers


@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize("gelu", ["exact", "quick"])
def test_patches_equal_the_tower_written_out(file, gelu, finetune):
    state = clip_state()
    model = ClipPatches(3 * 8, 8, file=file, gelu=gelu, finetune=finetune)
    pictures = torch.rand(2, 8, 8, 3)
    got = model(pictures.flatten(2))
    assert got.shape == (2, model.n_cells, model.width) == (2, 4, 128)
    assert got.requires_grad == finetune
    ready = ((pictures - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)
    wanted = torch.stack([image_states(state, picture, gelu=gelu) for picture in ready])
    torch.testing.assert_close(got, wanted[:, 1:], rtol=1e-5, atol=1e-5)
    tower = read_clip(file, "clip_file", gelu).image_tower(embeddings=True)
    torch.testing.assert_close(tower.embed(ready), wanted[:, 0] @ state["visual.proj"], rtol=1e-4, atol=1e-5)


def test_pictures_are_scaled_and_cut_as_by_pillow():
    import numpy as np
    from PIL import Image

    bytes_ = np.random.default_rng(0).integers(70, 190, (40, 57, 3), np.uint8)
    for size in (8, 21, 64):
        wide = size * 57 // 40
        left = round((wide - size) / 2)
        scaled = Image.fromarray(bytes_).resize((wide, size), Image.Resampling.BICUBIC)
        wanted = torch.from_numpy(np.array(scaled)[:, left : left + size] / 255.0)
        ready = Pictures(57 * 3, size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        got = ready(torch.from_numpy(bytes_ / 255.0).flatten(1)[None])[0].permute(1, 2, 0)
        assert (got - wanted).abs().max() < 1.6 / 255  # Pillow rounds to bytes, twice
    same = torch.rand(1, 8, 24)
    assert torch.equal(Pictures(24, 8, (0.0,) * 3, (1.0,) * 3)(same)[0, 1], same[0, :, 1::3])


@pytest.mark.parametrize("gelu", ["exact", "quick"])
@pytest.mark.parametrize("grad", [False, True])
def test_text_equals_the_tower_written_out(file, gelu, grad):
    state, ids = clip_state(), torch.randint(540, (3, 9))
    tower = read_clip(file, "text_file", gelu).text_tower(embeddings=True)
    with torch.set_grad_enabled(grad):
        got = tower(ids)
    wanted = torch.stack([text_states(state, row, gelu=gelu) for row in ids])
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    last = tower.project(got[:, -1])
    torch.testing.assert_close(last, wanted[:, -1] @ state["text_projection"], rtol=1e-4, atol=1e-5)


def test_the_configuration_beside_the_file(tmp_path, file):
    state, ids = clip_state(), torch.randint(540, (9,))
    picture = torch.rand(1, 8, 24)
    config = {
        "model_cfg": {"quick_gelu": True, "vision_cfg": {"head_width": 16}, "text_cfg": {"heads": 4}},
        "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    ready = (picture[0].unflatten(1, (8, 3)).permute(2, 0, 1) - 0.5) / 0.25
    for gelu in ("config", "exact"):
        is_ = "quick" if gelu == "config" else gelu
        found = ClipPatches(24, 8, file=file, gelu=gelu)(picture)[0]
        torch.testing.assert_close(found, image_states(state, ready, 8, is_)[1:], rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            words = read_clip(file, "text_file", gelu).text_tower(embeddings=False)(ids[None])[0]
        torch.testing.assert_close(words, text_states(state, ids, 4, is_), rtol=1e-5, atol=1e-5)


def test_files_of_several_kinds_hold_the_same(tmp_path, file):
    state = clip_state()
    torch.save(state, tmp_path / "a.pt")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "b.pt")
    inner = {k if k.startswith(("visual.", "logit")) else f"text.{k}": v for k, v in state.items()}
    torch.save({**inner, "attn_mask": torch.zeros(2, 2)}, tmp_path / "c.pt")
    torch.save({k: v.half() for k, v in state.items()}, tmp_path / "half.pt")
    pictures, ids = torch.rand(1, 8, 24), torch.randint(540, (1, 5))

    def outputs(path):
        patches = ClipPatches(24, 8, file=str(path))(pictures)
        return patches, read_clip(str(path), "text_file").text_tower(embeddings=False)(ids)

    wanted = outputs(file)
    for name, close in (("a.pt", 0), ("b.pt", 0), ("c.pt", 0), ("half.pt", 0.05)):
        for got, expected in zip(outputs(tmp_path / name), wanted, strict=True):
            assert got.dtype == torch.float32
            assert (got - expected).abs().max() <= close


# ------------------------------------------------------------------------------------------- byte pairs


def test_texts_are_split_as_by_the_published_pattern():
    assert split_text("isn't it 'tis we'll") == ["isn", "'t", "it", "'t", "is", "we", "'ll"]
    assert split_text("a-b...c 42 \u00bd\u2167") == ["a", "-", "b", "...", "c", "4", "2", "\u00bd", "\u2167"]
    assert split_text("_x_ ''s") == ["_", "x", "_", "''", "s"]
    assert split_text(" ") == []


def test_pieces(tmp_path):
    pairs = BytePairs.read(merges_file(tmp_path / "merges.txt"), 540)
    assert (pairs.start, pairs.end) == (538, 539)
    assert pairs.pieces("Teapot TEA tepots") == ["teapot</w>", "tea</w>", "te", "pot", "s</w>"]
    assert pairs.encode("teapot") == [512 + MERGES.index("tea pot</w>")]
    letters = list(byte_characters().values())
    assert len(set(letters)) == 256
    assert letters[:3] == ["!", '"', "#"]
    # a byte that does not print: white space never arrives here, but the bytes of other scripts do
    assert pairs.encode("\u00e9") == [letters.index("\u00c3"), 256 + letters.index("\u00a9")]
    assert pairs.encode("&amp;amp;") == [256 + letters.index("&")]
    rows = pairs.table(["<pad>", "<start>", "<end>", "<unk>", "tea"]).tolist()
    assert rows == [[-1], [538], [539], [-1], [513]]
    assert pairs.table(["a-b", "tea"]).tolist()[1] == [513, -1, -1]
    packed = tmp_path / "merges.txt.gz"
    packed.write_bytes(gzip.compress((tmp_path / "merges.txt").read_bytes()))
    assert BytePairs.read(str(packed), 540).ids == pairs.ids


def test_joins_the_least_rank_first_at_all_its_places():
    pairs = BytePairs([("b", "c"), ("a", "a"), ("a", "bc"), ("aa", "a</w>")])
    assert pairs.pieces("abcabc") == ["abc", "a", "b", "c</w>"]
    assert pairs.pieces("aaaaa") == ["aa", "aaa</w>"]


# -------------------------------------------------------------------------------------- words of captions

IDS = torch.tensor([[1, 4, 6, 8, 2, 0], [1, 5, 9, 7, 4, 2], [1, 3, 2, 0, 0, 0]])
TOKENS = Tokens(IDS, (5, 6, 3))


def pieces_of(pairs, row):
    """Ids of the pieces of each word of a caption."""
    own = {"<start>": [pairs.start], "<end>": [pairs.end], "<unk>": []}
    return [own[w] if w in own else pairs.encode(w) for w in (WORDS[i] for i in row)]


@pytest.mark.parametrize("unit", [False, True])
def test_a_word_is_the_mean_of_its_pieces(tmp_path, file, unit):
    model, state = text_encoder(tmp_path, file, unit=unit), clip_state()
    pairs = BytePairs.read(str(tmp_path / "merges.txt"), 540)
    words, last = model(TOKENS)
    assert words.shape == (3, 6, 5)
    for i, length in enumerate(TOKENS.lengths):
        parts = pieces_of(pairs, IDS[i, :length].tolist())
        states = text_states(state, torch.tensor(list(chain(*parts))))
        split = states.split([len(part) for part in parts])
        means = torch.stack([part.mean(0) if len(part) else states[-1] for part in split])
        wanted = model.fc(means)
        torch.testing.assert_close(last[i], model.fc(states[-1]), rtol=1e-4, atol=1e-5)
        if unit:
            wanted = wanted / wanted.norm(dim=1, keepdim=True)
        torch.testing.assert_close(words[i, :length], wanted, rtol=1e-4, atol=1e-5)
        assert bool((words[i, length:] == 0).all())


def test_long_captions_are_cut_and_keep_their_end(tmp_path, file):
    model, state = text_encoder(tmp_path, file), clip_state()
    ids = torch.tensor([[1, *[9, 4] * 4, 2], [1, 4, 2, *[0] * 7]])  # zebra: five pieces
    words, ends = model.read(Tokens(ids, (10, 3)))
    pairs = BytePairs.read(str(tmp_path / "merges.txt"), 540)
    long = list(chain(*pieces_of(pairs, ids[0].tolist())))
    assert len(long) > 12
    states = text_states(state, torch.tensor([*long[:11], pairs.end]))
    torch.testing.assert_close(ends[0], states[-1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(words[0, 1], states[1:6].mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(words[0, 3], states[7:11].mean(0), rtol=1e-4, atol=1e-5)  # lost its last piece
    torch.testing.assert_close(words[0, 4:], states[-1].expand(6, -1), rtol=1e-4, atol=1e-5)
    short = text_states(state, torch.tensor(list(chain(*pieces_of(pairs, [1, 4, 2])))))
    torch.testing.assert_close(words[1, :3], short, rtol=1e-4, atol=1e-5)


def test_the_datas_own_ids(file):
    model = ClipTextEncoder(20, 5, file=file, unit=False)
    ids = torch.tensor([[1, 9, 4, 2]])
    words, last = model(Tokens(ids, (4,)))
    wanted = model.fc(text_states(clip_state(), ids[0]))
    torch.testing.assert_close(words[0], wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last[0], wanted[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize("name", ["vse", "vse_inf", "scan", "imram", "sgr", "saf", "sgraf"])
def test_models_train_on_it_and_come_back(tmp_path, file, name, finetune):
    options = {
        "feature_dim": 15 * 3,
        "vocab_size": len(WORDS),
        "n_regions": 11,
        "embed_dim": 8,
        "sim_dim": 4,
        "image": "clip",
        "image_file": file,
        "text": "clip",
        "text_file": file,
        "text_merges": merges_file(tmp_path / "merges.txt"),
        "text_words": words_file(tmp_path / "words.json"),
        "clip_gelu": "quick",
        "finetune": finetune,
    }
    torch.manual_seed(0)
    model = build(name, **options)
    before = {k: v.clone() for k, v in model.named_parameters()}
    pictures = torch.rand(3, 11, 45)
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


# ------------------------------------------------------------------------------------------ what is refused


def test_errors_name_the_file(tmp_path, file):
    state = clip_state()

    def broken(message, drop=(), config=None, text=True, **changes):
        kept = {k: v for k, v in {**state, **changes}.items() if not k.startswith(tuple(drop) or "-")}
        save_file(kept, tmp_path / "broken.safetensors")
        (tmp_path / "open_clip_config.json").write_text(json.dumps(config or {}))
        with pytest.raises(ValueError, match=message):
            ClipPatches(24, 8, file=str(tmp_path / "broken.safetensors"))
        (tmp_path / "open_clip_config.json").unlink()

    broken(r"image_file='.*broken.*' has no image tower.*'visual\.conv1\.weight' is missing", ["visual."])
    broken(r"'visual\.ln_post\.bias' is missing, \(128,\) is needed", ["visual.ln_post.bias"])
    broken(
        r"'visual\.ln_pre\.bias' has shape \(3,\)",
        **{"visual.ln_pre.bias": torch.zeros(3)},
    )
    broken("'visual.attn_pool.q' belongs to no tower", **{"visual.attn_pool.q": torch.zeros(3)})
    broken("5 patches are no square", **{"visual.positional_embedding": torch.zeros(6, 128)})
    broken("head_width", config={"vision_cfg": {"head_width": 48}})
    broken("vision_cfg.pool_type='avg'", config={"model_cfg": {"vision_cfg": {"pool_type": "avg"}}})
    broken("preprocess_cfg.resize_mode='squash'", config={"preprocess_cfg": {"resize_mode": "squash"}})
    save_file(clip_state(text_width=40), tmp_path / "narrow.safetensors")
    with pytest.raises(ValueError, match=r"states of width 40 cannot be cut into heads of width 64; say in"):
        ClipTextEncoder(9, 5, file=str(tmp_path / "narrow.safetensors"))
    with pytest.raises(ValueError, match=r"text_file='x': there is no such file"):
        ClipTextEncoder(9, 5, file="x")
    with pytest.raises(ValueError, match="clip_gelu must be one of 'config', 'exact', 'quick', got 'tanh'"):
        ClipTextEncoder(9, 5, file=file, gelu="tanh")
    with pytest.raises(ValueError, match="knows 540 ids and the data has 541; give text_merges"):
        ClipTextEncoder(541, 5, file=file)
    with pytest.raises(ValueError, match="three numbers per pixel; choose data or data_options"):
        ClipPatches(2048, 36, file=file)


def test_programs_and_objects_are_not_loaded(tmp_path):
    path = tmp_path / "program.pt"
    with zipfile.ZipFile(path, "w") as archive:  # the layout of torch.jit.save
        archive.writestr("program/code/__torch__.py", "")
        archive.writestr("program/constants.pkl", b"")
    with pytest.raises(ValueError, match="is a TorchScript archive, which holds a program; save its weights"):
        read_clip(str(path), "clip_file")
    torch.save({"state_dict": clip_state(), "model": torch.nn.Linear(2, 2)}, tmp_path / "whole.pt")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    for name in ("whole.pt", "junk.pt"):
        with pytest.raises(ValueError, match=rf"{name}' is no file of torch.save that holds tensors only"):
            read_clip(str(tmp_path / name), "clip_file")


def test_errors_of_the_merges(tmp_path, file):
    words = words_file(tmp_path / "words.json")
    with pytest.raises(ValueError, match="text_words='': give both"):
        ClipTextEncoder(9, 5, file=file, merges="x")
    with pytest.raises(ValueError, match="text_merges='x': there is no such file"):
        text_encoder(tmp_path, file, merges="x")
    with pytest.raises(ValueError, match="has 10 words under 'word2idx', the data has 11"):
        ClipTextEncoder(11, 5, file=file, merges=merges_file(tmp_path / "m.txt"), words_file=words)
    with pytest.raises(ValueError, match=r"then 26 different pairs.*it has 20"):
        text_encoder(tmp_path, file, merges=_cut_short(tmp_path))
    with pytest.raises(ValueError, match="line 3 is no pair"):
        text_encoder(tmp_path, file, merges=merges_file(tmp_path / "m.txt", merges=["t e", "tea"]))
    save_file(clip_state(vocab=100), tmp_path / "few.safetensors")
    with pytest.raises(ValueError, match="the text tower has 100 pieces, bytes alone are 514"):
        text_encoder(tmp_path, str(tmp_path / "few.safetensors"))


def _cut_short(folder):
    lines = (folder / "m.txt").read_text().split("\n")
    (folder / "short.txt").write_text("\n".join(lines[:21]))
    return str(folder / "short.txt")


def test_options_that_nothing_reads_are_named():
    sizes = {"feature_dim": 96, "vocab_size": 9, "embed_dim": 6}
    for options, message in (
        ({"text": "clip"}, "text='clip' needs text_file"),
        ({"image": "clip"}, "image='clip' needs image_file"),
        ({"text_file": "x"}, "text_file='x' is used with text='clip' only, got text='bigru'"),
        ({"text_merges": "x"}, "text_merges='x' is used with text='clip' only"),
        ({"clip_gelu": "quick"}, "clip_gelu='quick' is used with text='clip' or image='clip' only"),
        ({"clip_gelu": "tanh"}, "clip_gelu must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            build("vse", **sizes, **options)
