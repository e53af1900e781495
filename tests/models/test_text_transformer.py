"""The transformer text encoder: equal to torch's own layers, WordPieces, and what is refused."""

import json

import pytest
import torch
from local_weights import PIECES, WORDS, bert_folder, bert_state, words_file
from safetensors.torch import save_file

from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.text_transformer import TransformerTextEncoder, piece_table, word_pieces


def reference(config, state, ids):
    """Last hidden states of one sequence without padding, by torch's encoder layer."""
    width = config["hidden_size"]
    x = state["embeddings.word_embeddings.weight"][ids]
    x = x + state["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + state["embeddings.token_type_embeddings.weight"][0]
    scale, shift = state["embeddings.LayerNorm.weight"], state["embeddings.LayerNorm.bias"]
    x = torch.nn.functional.layer_norm(x, (width,), scale, shift, 1e-12)[None]
    for i in range(config["num_hidden_layers"]):
        layer = torch.nn.TransformerEncoderLayer(
            width,
            config["num_attention_heads"],
            config["intermediate_size"],
            activation="gelu",
            layer_norm_eps=1e-12,
            batch_first=True,
        ).eval()
        own = {
            key.removeprefix(f"encoder.layer.{i}."): value
            for key, value in state.items()
            if key.startswith(f"encoder.layer.{i}.")
        }
        for kind in ("weight", "bias"):
            parts = [own[f"attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            own[f"in_proj.{kind}"] = torch.cat(parts)
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": own["in_proj.weight"],
                "self_attn.in_proj_bias": own["in_proj.bias"],
                "self_attn.out_proj.weight": own["attention.output.dense.weight"],
                "self_attn.out_proj.bias": own["attention.output.dense.bias"],
                "linear1.weight": own["intermediate.dense.weight"],
                "linear1.bias": own["intermediate.dense.bias"],
                "linear2.weight": own["output.dense.weight"],
                "linear2.bias": own["output.dense.bias"],
                "norm1.weight": own["attention.output.LayerNorm.weight"],
                "norm1.bias": own["attention.output.LayerNorm.bias"],
                "norm2.weight": own["output.LayerNorm.weight"],
                "norm2.bias": own["output.LayerNorm.bias"],
            }
        )
        with torch.no_grad():
            x = layer(x)
    return x[0]


def encoder(folder, **options):
    torch.manual_seed(0)
    options = {"unit": False, "words_file": words_file(folder / "words.json"), **options}
    return TransformerTextEncoder(len(WORDS), 5, folder=str(folder), **options)


IDS = torch.tensor([[1, 4, 6, 8, 2, 0], [1, 5, 9, 7, 4, 2], [1, 3, 2, 0, 0, 0]])
CUT = [
    [["[CLS]"], ["a"], ["red"], ["tea", "##pot", "##s"], ["[SEP]"]],
    [["[CLS]"], ["n", "'", "t"], ["[UNK]"], ["tea", "##pot"], ["a"], ["[SEP]"]],
    [["[CLS]"], ["[UNK]"], ["[SEP]"]],
]


@pytest.mark.parametrize("unit", [False, True])
def test_a_word_is_the_mean_of_its_pieces(tmp_path, unit):
    config, state = bert_folder(tmp_path)
    model = encoder(tmp_path, unit=unit)
    words, last = model(Tokens(IDS, (5, 6, 3)))
    assert words.shape == (3, 6, 5)
    for row, parts in enumerate(CUT):
        pieces = [piece for part in parts for piece in part]
        states = reference(config, state, torch.tensor([PIECES.index(piece) for piece in pieces]))
        means = torch.stack([part.mean(0) for part in states.split([len(part) for part in parts])])
        wanted = model.fc(means)
        torch.testing.assert_close(last[row], wanted[0], rtol=1e-5, atol=1e-6)
        if unit:
            wanted = wanted / wanted.norm(dim=1, keepdim=True)
        torch.testing.assert_close(words[row, : len(parts)], wanted, rtol=1e-5, atol=1e-6)
        assert bool((words[row, len(parts) :] == 0).all())


def test_the_datas_own_ids(tmp_path):
    config, state = bert_folder(tmp_path)
    model = encoder(tmp_path, words_file="")
    ids = torch.tensor([[1, 9, 4, 2]])
    words, _ = model(Tokens(ids, (4,)))
    torch.testing.assert_close(words[0], model.fc(reference(config, state, ids[0])), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("finetune", [False, True])
def test_what_is_trained(tmp_path, finetune):
    bert_folder(tmp_path)
    model = encoder(tmp_path, finetune=finetune)
    words, _ = model(Tokens(IDS, (5, 6, 3)))
    words.square().sum().backward()
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert trained == ({"fc", "transformer"} if finetune else {"fc"})
    assert model.transformer.dropout.p == (0.1 if finetune else 0.0)


def test_older_names_are_read(tmp_path):
    _, state = bert_folder(tmp_path)
    wanted = encoder(tmp_path)(Tokens(IDS, (5, 6, 3)))[0]
    older = {
        "bert." + k.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): v
        for k, v in state.items()
    }
    save_file(older, tmp_path / "model.safetensors")
    assert torch.equal(encoder(tmp_path)(Tokens(IDS, (5, 6, 3)))[0], wanted)


@pytest.mark.parametrize("name", ["vse", "vse_inf", "scan", "imram", "sgr", "sgraf"])
def test_models_read_words_through_it(tmp_path, name):
    bert_folder(tmp_path)
    model = build(
        name,
        feature_dim=6,
        vocab_size=len(WORDS),
        n_regions=4,
        embed_dim=8,
        sim_dim=4,
        text="transformer",
        text_folder=str(tmp_path),
        text_words=words_file(tmp_path / "words.json"),
    )
    images = torch.randn(2, 4, 6)
    scores = model(images, Tokens(IDS, (5, 6, 3)))
    scores.sum().backward()
    assert scores.shape == (2, 3)
    assert any("fc" in key and p.grad is not None for key, p in model.named_parameters() if "text_enc" in key)
    again = model.eval()(images, Tokens(torch.cat([IDS, IDS[:, :1]], 1), (5, 6, 3)))
    torch.testing.assert_close(again, model(images, Tokens(IDS, (5, 6, 3))))


def test_pieces_of_words():
    known = {piece: i for i, piece in enumerate(PIECES)}
    assert word_pieces("Téapots", known) == ["tea", "##pot", "##s"]
    assert word_pieces("red-tea", known) == ["red", "[UNK]", "tea"]
    assert word_pieces("teax", known) == ["[UNK]"]
    assert word_pieces("  ", known) == ["[UNK]"]
    assert piece_table(["<end>", "teapot"], known).tolist() == [[3, -1], [7, 8]]


def test_errors_name_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json; it must hold"):
        encoder(tmp_path)
    config, state = bert_folder(tmp_path)
    with pytest.raises(ValueError, match="knows 13 ids and the data has 40; give text_words"):
        TransformerTextEncoder(40, 5, folder=str(tmp_path))
    with pytest.raises(ValueError, match="has 10 words under 'word2idx', the data has 11"):
        TransformerTextEncoder(11, 5, folder=str(tmp_path), words_file=words_file(tmp_path / "words.json"))
    with pytest.raises(ValueError, match="there is no such file"):
        encoder(tmp_path, words_file="nowhere.json")
    with pytest.raises(ValueError, match="a caption of 21 pieces, the transformer reads at most 20"):
        encoder(tmp_path)(Tokens(torch.full((1, 7), 8), (7,)))
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES[:-8]))
    assert encoder(tmp_path).pieces.shape == (10, 3)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES[1:]))
    with pytest.raises(ValueError, match=r"lacks \[PAD\]"):
        encoder(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"has no vocab\.txt"):
        encoder(tmp_path)
    broken = dict(state)
    del broken["encoder.layer.1.output.dense.bias"]
    save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 weights are missing.*encoder\.layer\.1\.output\.dense\.bias"):
        encoder(tmp_path, words_file="")
    save_file(bert_state(config | {"intermediate_size": 6}), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"has shape \(6, 8\), config\.json says \(12, 8\)"):
        encoder(tmp_path, words_file="")
    for key, value, message in (
        ("hidden_act", "relu", "hidden_act must be 'gelu', got 'relu'"),
        ("hidden_size", "8", "hidden_size must be a positive integer"),
        ("num_attention_heads", 3, "num_attention_heads must divide hidden_size"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(ValueError, match=message):
            encoder(tmp_path)
