"""Pretrained encoders: the states of the networks, words and their pieces, and what is refused."""

import contextlib
import json
import pickle
import re
import sys
import traceback
from itertools import chain

import pytest
import torch
from clip_reference import text_states
from local_weights import MERGES, PIECES, WORDS, bert_folder, clip_folder, clip_vocabulary
from local_weights import words_file as write_words
from refusals import refused
from safetensors.torch import load_file, save_file

from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.pretrained import PretrainedText, load_tokenizer, piece_table
from nclib.models.two_towers import TwoTowers

IDS = torch.tensor([[1, 4, 6, 8, 2, 0], [1, 5, 9, 7, 4, 2], [1, 3, 2, 0, 0, 0]])
TOKENS = Tokens(IDS, (5, 6, 3))
BERT_CUT = [
    [["[CLS]"], ["a"], ["red"], ["tea", "##pot", "##s"], ["[SEP]"]],
    [["[CLS]"], ["n", "'", "t"], ["[UNK]"], ["tea", "##pot"], ["a"], ["[SEP]"]],
    [["[CLS]"], ["[UNK]"], ["[SEP]"]],
]
CLIP_CUT = [
    [["<|startoftext|>"], ["a</w>"], ["r", "e", "d</w>"], ["teapot", "s</w>"], ["<|endoftext|>"]],
    [
        *(["<|startoftext|>"], ["n</w>", "'", "t</w>"], ["z", "e", "b", "r", "a</w>"]),
        *(["teapot</w>"], ["a</w>"], ["<|endoftext|>"]),
    ],
    [["<|startoftext|>"], [], ["<|endoftext|>"]],
]


def text_encoder(kind, at, **options):
    torch.manual_seed(0)
    words = write_words(at / "words.json")
    options = {"unit": False, "words_file": words, "folder": str(at), **options}
    return PretrainedText(len(WORDS), 5, kind=kind, **options)


# ------------------------------------------------------------------------------------------------ words


def bert_states(config, state, ids):
    """Last hidden states of one sequence without padding."""
    from transformers import BertConfig, BertModel

    network = BertModel(BertConfig(**config)).eval()
    network.load_state_dict(state, strict=False)
    with torch.no_grad():
        return network(ids[None]).last_hidden_state[0]


@pytest.mark.slow
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("kind", ["bert", "clip", "quick clip"])
def test_a_word_is_the_mean_of_its_pieces(tmp_path, kind, unit):
    if kind == "bert":
        config, state = bert_folder(tmp_path)
        names, cut, sentence = {piece: i for i, piece in enumerate(PIECES)}, BERT_CUT, 0

        def states_of(ids):
            return bert_states(config, state, ids)

    else:
        gelu = "quick_gelu" if kind == "quick clip" else "gelu"
        state = clip_folder(tmp_path, gelu=gelu, max_position_embeddings=20)
        names, cut, sentence = clip_vocabulary(), CLIP_CUT, -1

        def states_of(ids):
            return text_states(state, ids, gelu=gelu)

    model = text_encoder(kind.split()[-1], tmp_path, unit=unit)
    words, last = model(TOKENS)
    assert words.shape == (3, 6, 5)
    for row, parts in enumerate(cut):
        states = states_of(torch.tensor([names[piece] for piece in chain(*parts)]))
        split = states.split([len(part) for part in parts])
        means = torch.stack([part.mean(0) if len(part) else states[sentence] for part in split])
        wanted = model.fc(means)
        torch.testing.assert_close(last[row], model.fc(states[sentence]), rtol=1e-4, atol=1e-5)
        if unit:
            wanted = wanted / wanted.norm(dim=1, keepdim=True)
        torch.testing.assert_close(words[row, : len(parts)], wanted, rtol=1e-4, atol=1e-5)
        assert bool((words[row, len(parts) :] == 0).all())


def test_pieces(tmp_path):
    bert_folder(tmp_path)
    names = [*PIECES, None]

    def cut(words):
        rows = piece_table(words, load_tokenizer(str(tmp_path), "text_folder")).tolist()
        return [[names[i] for i in row if i >= 0] for row in rows]

    assert cut(["Téapots", "red-tea", "teax", "  "]) == [
        ["tea", "##pot", "##s"],
        ["red", "[UNK]", "tea"],
        ["[UNK]"],
        ["[UNK]"],
    ]
    assert cut(["<start>", "<end>", "<unk>", "<pad>"]) == [["[CLS]"], ["[SEP]"], ["[UNK]"], []]
    (tmp_path / "clip").mkdir()
    clip_folder(tmp_path / "clip")
    table = piece_table(
        ["<pad>", "<start>", "<end>", "<unk>", "teapot"],
        load_tokenizer(str(tmp_path / "clip"), "clip_folder"),
    )
    assert table.tolist() == [[-1], [520], [521], [-1], [512 + MERGES.index("tea pot</w>")]]


def test_clip_cuts_long_captions_before_their_end(tmp_path):
    state, names = clip_folder(tmp_path), clip_vocabulary()
    model = text_encoder("clip", tmp_path)
    ids = torch.tensor([[1, *[9, 4] * 4, 2], [1, 4, 2, *[0] * 7]])  # zebra: five pieces
    words, ends = model.read(Tokens(ids, (10, 3)))
    zebra_a = [*CLIP_CUT[1][2], "a</w>"]
    long = [names[piece] for piece in ["<|startoftext|>", *zebra_a, *zebra_a]]
    states = text_states(state, torch.tensor([*long[:11], names["<|endoftext|>"]]))
    torch.testing.assert_close(ends[0], states[-1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(words[0, 1], states[1:6].mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(words[0, 3], states[7:11].mean(0), rtol=1e-4, atol=1e-5)  # lost its last piece
    torch.testing.assert_close(words[0, 4:], states[-1].expand(6, -1), rtol=1e-4, atol=1e-5)
    pieces = [names[p] for p in ("<|startoftext|>", "a</w>", "<|endoftext|>")]
    short = text_states(state, torch.tensor(pieces))
    torch.testing.assert_close(words[1, :3], short, rtol=1e-4, atol=1e-5)


def test_older_names_of_weights_are_read(tmp_path):
    _, state = bert_folder(tmp_path)
    wanted = text_encoder("bert", tmp_path)(TOKENS)[0]
    renamed = [k.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for k in state]
    older = {f"bert.{k}": v for k, v in zip(renamed, state.values(), strict=True)}
    save_file(older, tmp_path / "model.safetensors")
    assert torch.equal(text_encoder("bert", tmp_path)(TOKENS)[0], wanted)


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_a_trained_tower_can_be_differentiated_twice(tmp_path, kind):
    bert_folder(tmp_path) if kind == "bert" else clip_folder(tmp_path, max_position_embeddings=20)
    model = text_encoder(kind, tmp_path, finetune=True).double().eval()
    name, weight = next(
        (k, p) for k, p in model.named_parameters() if re.search(r"(query|q_proj)\.weight", k)
    )
    direction = torch.randn_like(weight)

    def slope():
        words, _ = model(TOKENS)
        (gradient,) = torch.autograd.grad(words.square().sum(), weight, create_graph=True)
        return (gradient * direction).sum()

    (second,) = torch.autograd.grad(slope(), weight)
    step = 3e-3  # CLIP's softmax is computed in float32 whatever the weights are
    with torch.no_grad():
        weight += step * direction
    high = slope().detach()
    with torch.no_grad():
        weight -= 2 * step * direction
    numeric = (high - slope().detach()) / (2 * step)
    assert numeric.abs() > 1e-3, name
    torch.testing.assert_close((second * direction).sum(), numeric, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("finetune", [False, True])
def test_dropout_is_part_of_training_only(tmp_path, finetune):
    bert_folder(tmp_path, hidden_dropout_prob=0.3)
    given = {"text": "bert", "text_folder": str(tmp_path), "text_words": write_words(tmp_path / "words.json")}
    model = build("vse", feature_dim=6, vocab_size=len(WORDS), **given, finetune=finetune).train()
    same = torch.equal(model.encode_captions(TOKENS).vectors, model.encode_captions(TOKENS).vectors)
    assert same == (not finetune)
    model.eval()
    assert torch.equal(model.encode_captions(TOKENS).vectors, model.encode_captions(TOKENS).vectors)
    model.train()
    assert model.text_encoder.tower.training == finetune


# -------------------------------------------------------------------------------------- what is refused


def without_bias(folder):
    state = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in state.items() if "1.output.dense.bias" not in k}
    save_file(kept, folder / "model.safetensors")


def narrower(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 6}))


def more_pieces(folder):
    (folder / "vocab.txt").write_text("\n".join([*PIECES, "teapot", "zebra"]))


def without_bin(folder, content):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)


JUNK = b"\x93\xff" * 200
CODE = pickle.dumps(print)  # would be looked up if anything unpickled it


@pytest.mark.parametrize("kind", ["bert", "own"])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("config.json", "AutoConfig"),
        ("config.json", "AutoModel"),
        ("tokenizer_config.json", "AutoTokenizer"),
        ("preprocessor_config.json", "AutoImageProcessor"),
        ("processor_config.json", "AutoProcessor"),
    ],
)
def test_code_beside_weights_is_refused_unasked_and_never_run(tmp_path, monkeypatch, kind, name, part):
    """Whether or not the library has a class of its own for the network."""
    bert_folder(tmp_path)
    mark, folder = tmp_path / "ran", str(tmp_path)
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: pass\n")
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": kind}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = json.loads((tmp_path / name).read_text()) if (tmp_path / name).exists() else {}
    code = [None, "own.Own"] if part == "AutoTokenizer" else "own.Own"
    (tmp_path / name).write_text(json.dumps(found | {"auto_map": {part: code}}))
    monkeypatch.setattr("builtins.input", lambda *text: pytest.fail("asks whether to run the code"))
    for option, call in (
        ("text_folder", lambda: text_encoder("bert", tmp_path)),
        ("pieces", lambda: load_tokenizer(folder, "pieces")),
        ("model", lambda: TwoTowers(folder)),
    ):
        refused(ValueError, call, f"{option}={folder!r}", name, "auto_map")
    monkeypatch.setattr("nclib.common.transformers.DESCRIPTIONS", ())  # the library's own lock holds as well
    with contextlib.suppress(ValueError):
        text_encoder("bert", tmp_path)
        TwoTowers(folder)
    assert not mark.exists()


def test_a_caption_of_too_many_pieces_and_a_missing_library_are_named(tmp_path, monkeypatch):
    bert_folder(tmp_path)
    model = text_encoder("bert", tmp_path)
    refused(ValueError, lambda: model(Tokens(torch.full((1, 7), 8), (7,))), "21 pieces", "20")
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(ValueError, lambda: text_encoder("bert", tmp_path), "text_folder", "pip install")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("spoil", "options", "named"),
    [
        (None, {"folder": "{}/none"}, ["text_folder=", "none'", "config.json"]),
        (None, {"folder": "no/such-name"}, ["text_folder='no/such-name'", "cache"]),
        (None, {"kind": "clip"}, ["text_folder=", "'bert'", "'clip'"]),
        (None, {"size": 40, "words_file": ""}, ["text_folder=", "13", "40", "text_words"]),
        (None, {"size": 11}, ["text_words=", "10 words", "11"]),
        (None, {"words_file": "nowhere.json"}, ["text_words='nowhere.json'", "No such file"]),
        (more_pieces, {}, ["text_folder=", "14", "config.json", "13"]),
        (lambda at: (at / "vocab.txt").unlink(), {}, ["text_folder=", "tokenizer", "text_words"]),
        (without_bias, {"words_file": ""}, ["'encoder.layer.1.output.dense.bias'"]),
        (narrower, {"words_file": ""}, ["(12,)", "config.json", "(6,)"]),
        (lambda at: (at / "model.safetensors").write_bytes(JUNK), {}, ["text_folder=", "header too large"]),
        (lambda at: (at / "model.safetensors").write_bytes(b""), {}, ["text_folder=", "header too small"]),
        (lambda at: without_bin(at, JUNK), {}, ["text_folder=", "damaged"]),
        (lambda at: without_bin(at, CODE), {}, ["text_folder=", "damaged"]),
        (lambda at: (at / "config.json").write_bytes(b"[1, 2]"), {}, ["text_folder="]),
        (lambda at: (at / "vocab.txt").write_bytes(JUNK), {}, ["text_folder=", "tokenizer"]),
        (lambda at: (at / "words.json").write_bytes(JUNK), {}, ["text_words="]),
        (lambda at: (at / "words.json").write_bytes(b"[1, 2]"), {}, ["text_words="]),
    ],
)
def test_what_cannot_be_read_is_named_without_unsafe_advice(tmp_path, spoil, options, named):
    bert_folder(tmp_path)
    given = {"kind": "bert", "folder": str(tmp_path), "words_file": write_words(tmp_path / "words.json")}
    given |= {key: str(value).format(tmp_path) for key, value in options.items()}
    size = int(given.pop("size", len(WORDS)))
    if spoil:
        spoil(tmp_path)
    with pytest.raises(ValueError) as caught:
        PretrainedText(size, 5, **given)
    assert [word for word in named if word not in str(caught.value)] == []
    shown = "".join(traceback.format_exception(caught.value))
    assert "weights_only" not in shown.replace("weights_only=True", "")


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_the_datas_own_ids(tmp_path, kind):
    made = bert_folder(tmp_path) if kind == "bert" else clip_folder(tmp_path)
    model = text_encoder(kind, tmp_path, words_file="")
    ids = torch.tensor([[1, 9, 4, 2]])
    words, _ = model(Tokens(ids, (4,)))
    states = bert_states(*made, ids[0]) if kind == "bert" else text_states(made, ids[0])
    torch.testing.assert_close(words[0], model.fc(states), rtol=1e-4, atol=1e-5)
