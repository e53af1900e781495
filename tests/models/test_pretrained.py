"""Pretrained encoders: equal to the networks written out, words and their pieces, and what is refused."""

import contextlib
import json
import pickle
import re
import sys
import traceback
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from clip_reference import text_states
from local_weights import MERGES, PIECES, WORDS, bert_folder, clip_folder, clip_vocabulary
from local_weights import words_file as write_words
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
        ["<|startoftext|>"],
        ["n</w>", "'", "t</w>"],
        ["z", "e", "b", "r", "a</w>"],
        ["teapot</w>"],
        ["a</w>"],
        ["<|endoftext|>"],
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
    """Last hidden states of one sequence without padding, by torch's encoder layer."""
    width = config["hidden_size"]
    x = state["embeddings.word_embeddings.weight"][ids]
    x = x + state["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + state["embeddings.token_type_embeddings.weight"][0]
    scale, shift = state["embeddings.LayerNorm.weight"], state["embeddings.LayerNorm.bias"]
    x = F.layer_norm(x, (width,), scale, shift, 1e-12)[None]
    for i in range(config["num_hidden_layers"]):
        sizes = width, config["num_attention_heads"], config["intermediate_size"]
        layer = torch.nn.TransformerEncoderLayer(
            *sizes, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        own = {}
        for kind in ("weight", "bias"):
            at = f"encoder.layer.{i}."
            parts = [state[f"{at}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            own[f"self_attn.in_proj_{kind}"] = torch.cat(parts)
            own[f"self_attn.out_proj.{kind}"] = state[f"{at}attention.output.dense.{kind}"]
            own[f"linear1.{kind}"] = state[f"{at}intermediate.dense.{kind}"]
            own[f"linear2.{kind}"] = state[f"{at}output.dense.{kind}"]
            own[f"norm1.{kind}"] = state[f"{at}attention.output.LayerNorm.{kind}"]
            own[f"norm2.{kind}"] = state[f"{at}output.LayerNorm.{kind}"]
        layer.load_state_dict(own)
        with torch.no_grad():
            x = layer.eval()(x)
    return x[0]


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


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_pieces_belong_to_the_words_that_the_tokenizer_says(tmp_path, kind):
    bert_folder(tmp_path) if kind == "bert" else clip_folder(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path), "text_folder")
    plain = ["teapots", "a", "red-tea", "Téapot"]
    whole = tokenizer(plain, is_split_into_words=True, add_special_tokens=False)
    table = piece_table(plain, tokenizer)
    assert table[table >= 0].tolist() == whole["input_ids"]
    owners = [i for i, row in enumerate(table) for piece in row if piece >= 0]
    assert owners == whole.word_ids()


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


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_the_datas_own_ids(tmp_path, kind):
    if kind == "bert":
        config, state = bert_folder(tmp_path)
    else:
        state = clip_folder(tmp_path)
    model = text_encoder(kind, tmp_path, words_file="")
    ids = torch.tensor([[1, 9, 4, 2]])
    words, _ = model(Tokens(ids, (4,)))
    states = bert_states(config, state, ids[0]) if kind == "bert" else text_states(state, ids[0])
    torch.testing.assert_close(words[0], model.fc(states), rtol=1e-4, atol=1e-5)


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
    short = text_states(
        state, torch.tensor([names[p] for p in ("<|startoftext|>", "a</w>", "<|endoftext|>")])
    )
    torch.testing.assert_close(words[1, :3], short, rtol=1e-4, atol=1e-5)


def test_older_names_of_weights_are_read(tmp_path):
    _, state = bert_folder(tmp_path)
    wanted = text_encoder("bert", tmp_path)(TOKENS)[0]
    older = {
        "bert." + k.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): v
        for k, v in state.items()
    }
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
    model = build(
        "vse",
        feature_dim=6,
        vocab_size=len(WORDS),
        text="bert",
        text_folder=str(tmp_path),
        text_words=write_words(tmp_path / "words.json"),
        finetune=finetune,
    ).train()
    same = torch.equal(model.encode_captions(TOKENS).vectors, model.encode_captions(TOKENS).vectors)
    assert same == (not finetune)
    model.eval()
    assert torch.equal(model.encode_captions(TOKENS).vectors, model.encode_captions(TOKENS).vectors)
    model.train()
    assert model.text_encoder.tower.training == finetune


# -------------------------------------------------------------------------------------- what is refused


def test_without_the_library_it_says_what_to_install(tmp_path, monkeypatch):
    bert_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"text_folder needs the library transformers: pip install 'noisy-c"):
        text_encoder("bert", tmp_path)


def test_errors_name_the_option_and_the_folder(tmp_path):
    with pytest.raises(ValueError, match=r"text_folder='.*none' is neither a folder with config\.json and"):
        text_encoder("bert", tmp_path, folder=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"text_folder='no/such-name' is neither a folder .* cache"):
        text_encoder("bert", tmp_path, folder="no/such-name")
    config, state = bert_folder(tmp_path)
    with pytest.raises(ValueError, match="holds a network of type 'bert', 'clip' is needed"):
        text_encoder("clip", tmp_path)
    with pytest.raises(ValueError, match="knows 13 ids and the data has 40; give text_words"):
        PretrainedText(40, 5, kind="bert", folder=str(tmp_path))
    words = write_words(tmp_path / "words.json")
    with pytest.raises(ValueError, match="has 10 words under 'word2idx', the data has 11"):
        PretrainedText(11, 5, kind="bert", folder=str(tmp_path), words_file=words)
    with pytest.raises(
        ValueError, match=r"text_words='nowhere\.json' is not a vocabulary file.*No such file"
    ):
        text_encoder("bert", tmp_path, words_file="nowhere.json")
    with pytest.raises(ValueError, match="a caption of 21 pieces, the transformer reads at most 20"):
        text_encoder("bert", tmp_path)(Tokens(torch.full((1, 7), 8), (7,)))
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "teapot", "zebra"]))
    with pytest.raises(ValueError, match=r"the tokenizer gives the id 14, config\.json has 13"):
        text_encoder("bert", tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ValueError, match="has no tokenizer's files, which text_words needs"):
        text_encoder("bert", tmp_path)
    save_file(
        {k: v for k, v in state.items() if "1.output.dense.bias" not in k}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ValueError, match=r"the weight 'encoder\.layer\.1\.output\.dense\.bias' is missing"):
        text_encoder("bert", tmp_path, words_file="")
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 6}))
    with pytest.raises(ValueError, match=r"has shape \(12,\), config\.json says \(6,\)"):
        text_encoder("bert", tmp_path, words_file="")


JUNK = b"\x93\xff" * 200
CODE = pickle.dumps(print)  # would be looked up if anything unpickled it


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", JUNK, "text_folder='.*' holds a damaged file.*header too large"),
        ("model.safetensors", b"", "text_folder='.*' holds a damaged file.*header too small"),
        ("pytorch_model.bin", JUNK, "text_folder='.*' holds a damaged file.*Weights only load failed"),
        ("pytorch_model.bin", CODE, "text_folder='.*' holds a damaged file.*Weights only load failed"),
        ("config.json", b"[1, 2]", "text_folder='.*' "),
        ("vocab.txt", JUNK, "text_folder='.*' has a damaged tokenizer's file"),
        ("words.json", JUNK, "text_words='.*' is not a vocabulary file"),
        ("words.json", b"[1, 2]", "text_words='.*' is not a vocabulary file"),
    ],
)
def test_damaged_files_are_named_without_unsafe_advice(tmp_path, name, content, message):
    bert_folder(tmp_path)
    words = write_words(tmp_path / "words.json")
    if name == "pytorch_model.bin":
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        PretrainedText(len(WORDS), 5, kind="bert", folder=str(tmp_path), words_file=words)
    shown = "".join(traceback.format_exception(caught.value))
    assert "weights_only" not in shown.replace("weights_only=True", "")


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
    mark = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: pass\n")
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": kind}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = json.loads((tmp_path / name).read_text()) if (tmp_path / name).exists() else {}
    code = [None, "own.Own"] if part == "AutoTokenizer" else "own.Own"
    (tmp_path / name).write_text(json.dumps(found | {"auto_map": {part: code}}))
    monkeypatch.setattr("builtins.input", lambda *text: pytest.fail("asks whether to run the code"))
    message = re.escape(
        f"{str(tmp_path)!r}: {name} asks for Python files of its own (auto_map), which are never"
    )
    with pytest.raises(ValueError, match=f"text_folder={message}"):
        text_encoder("bert", tmp_path)
    with pytest.raises(ValueError, match=f"pieces={message}"):
        load_tokenizer(str(tmp_path), "pieces")
    with pytest.raises(ValueError, match=f"model={message}"):
        TwoTowers(str(tmp_path))
    monkeypatch.setattr("nclib.common.transformers.DESCRIPTIONS", ())  # the library's own lock holds as well
    with contextlib.suppress(ValueError):
        text_encoder("bert", tmp_path)
        TwoTowers(str(tmp_path))
    assert not mark.exists()


def test_the_weights_are_those_of_the_file(tmp_path):
    clip_folder(tmp_path)
    model = text_encoder("clip", tmp_path)
    file = load_file(tmp_path / "model.safetensors")
    for name, value in model.tower.state_dict().items():
        assert torch.equal(value, file[f"text_model.{name}"]), name
