"""Encoders against worked numbers, and their errors."""

import numpy as np
import pytest
import torch
from registered import REGISTERED
from toy import fill

from nclib.common.options import rules
from nclib.common.tokens import Tokens
from nclib.models import build, options
from nclib.models.encoders import BiGRU, RegionEncoder, TextEncoder, sizes_on

SIZES = {"feature_dim": 6, "vocab_size": 9, "n_regions": 4, "embed_dim": 8, "sim_dim": 4, "word_dim": 3}


def close(got, wanted, atol=2e-6):
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=got.dtype), rtol=0, atol=atol)


def set_gru(gru, embedding):
    with torch.no_grad():
        embedding.weight.copy_(fill((6, 2), 1, 0.8))
        for suffix, a in (("", 2), ("_reverse", 6)):
            getattr(gru, f"weight_ih_l0{suffix}").copy_(fill((6, 2), a, 0.8))
            getattr(gru, f"weight_hh_l0{suffix}").copy_(fill((6, 2), a + 1, 0.8))
            getattr(gru, f"bias_ih_l0{suffix}").copy_(fill((6,), a + 2, 0.2))
            getattr(gru, f"bias_hh_l0{suffix}").copy_(fill((6,), a + 3, 0.2))


def test_region_encoder_numbers():
    encoder = RegionEncoder(3, 2).double()
    with torch.no_grad():
        encoder.fc.weight.copy_(fill((2, 3), 1, 0.5))
        encoder.fc.bias.copy_(fill((2,), 2, 0.1))
    close(
        encoder(torch.tensor([[[1.0, 2, 0], [0, 1, -1]]], dtype=torch.float64))[0],
        [[0.949233, 0.314572], [0.614513, 0.788907]],
    )


@pytest.mark.parametrize("unit", [True, False])
def test_text_encoder_numbers(unit):
    encoder = TextEncoder(6, 2, 2, dropout=0.4, unit=unit).double().eval()
    set_gru(encoder.gru, encoder.embedding)
    words, last = encoder(Tokens(torch.tensor([[1, 4, 5, 2], [1, 5, 2, 0]]), (4, 3)))
    if unit:
        close(
            words[0],
            [[0.267577, 0.963536], [0.630101, 0.776513], [0.714576, 0.699558], [0.977015, -0.213173]],
        )
        close(words[1, :3], [[0.195888, 0.980626], [0.668551, 0.743666], [0.985525, -0.169530]])
    else:
        plain = [[0.0799457, 0.287882], [0.201683, 0.248546], [0.309484, 0.302979], [0.361661, -0.0789100]]
        close(words[0], plain)
    assert torch.equal(words[1, 3], torch.zeros(2, dtype=torch.float64))
    states, final = encoder.gru(encoder.embedding(torch.tensor([[1, 5, 2]])))
    torch.testing.assert_close(last[1], final.mean(0)[0])
    torch.testing.assert_close(last[1], (states[0, -1, :2] + states[0, 0, 2:]) / 2)


def test_parameter_counts_at_full_size():
    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    model = build("saf", feature_dim=2048, vocab_size=8481, n_regions=36)
    assert count(model.image_encoder) == 2_098_176
    assert count(model.text_encoder) == 10_691_244
    assert count(model) - 2_098_176 - 10_691_244 == 4_727_886
    model = build("sgr", feature_dim=8, vocab_size=8, n_regions=36)
    assert count(model) - count(model.image_encoder) - count(model.text_encoder) == 5_319_755


@pytest.mark.parametrize("name", REGISTERED)
def test_wrong_input_is_named(name):
    model = build(name, **SIZES)
    tokens = Tokens(torch.tensor([[1, 2]]), (2,))
    with pytest.raises(ValueError, match=r"images must be \(batch, .*, 6\), .* got \(2, 4, 5\)"):
        model(torch.randn(2, 4, 5), tokens)
    with pytest.raises(ValueError, match="images must be"):
        model.encode_images(torch.randn(2, 6))
    with pytest.raises(ValueError, match=r"none of them 0, got \(0, 4, 6\)"):
        model.encode_images(torch.randn(0, 4, 6))
    with pytest.raises(ValueError, match="ids from 1 to 9, but the vocabulary holds 0 to 8"):
        model.encode_captions(Tokens(torch.tensor([[1, 9]]), (2,)))
    with pytest.raises(ValueError, match="ids from -1"):
        model.encode_captions(Tokens(torch.tensor([[1, -1]]), (2,)))
    with pytest.raises(ValueError, match="at least one caption"):
        model.encode_captions(Tokens(torch.zeros(0, 3, dtype=torch.long), ()))
    with pytest.raises(ValueError, match="caption empty"):
        model.encode_captions(Tokens(torch.tensor([[1, 2]]), (0,)))


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
def test_region_slots_are_fixed(name):
    with pytest.raises(ValueError, match=r"images must be \(batch, 4, .* got \(\d+, 5, "):
        build(name, **SIZES).encode_images(torch.randn(2, 5, 6))


def test_options_include_those_of_the_bases():
    assert list(rules(options("sgr")))[-3:] == ["dropout", "temperature", "steps"]
    assert options("sgraf").catalogue()["temperature"] == "9.0"
    assert options("scan").catalogue()["direction"] == "'t2i'"
    assert {"text_folder", "image_folder", "embed_dim"} <= set(rules(options("vse_inf")))


@pytest.mark.parametrize("model", ["scan", "vse_inf", "sgr"])
def test_word_embeddings_start_from_a_file(model, tmp_path):
    path = tmp_path / "vectors.npy"
    rows = np.arange(24, dtype=np.float64).reshape(8, 3)
    rows[2] = np.nan  # a word without a vector
    np.save(path, rows)
    torch.manual_seed(0)
    own = build(model, **SIZES).text_encoder.embedding.weight
    torch.manual_seed(0)
    weight = build(model, **SIZES, word_vectors=str(path)).text_encoder.embedding.weight
    known = [0, 1, 3, 4, 5, 6, 7]
    assert torch.equal(weight[known], torch.from_numpy(rows[known]).float())
    assert torch.equal(weight[[2, 8]], own[[2, 8]])
    assert weight.requires_grad
    with pytest.raises(ValueError, match=r"must be \(at most 7, 3\).*got \(8, 3\)"):
        build(model, **SIZES | {"vocab_size": 7}, word_vectors=str(path))
    with pytest.raises(ValueError, match="is used with text='bigru' only"):
        build(model, **SIZES, word_vectors=str(path), text="bert", text_folder=str(tmp_path))


@pytest.mark.parametrize("lengths", [(4, 1, 3), (2, 2, 2)])
def test_directions_that_run_alone_give_what_packed_sequences_give(monkeypatch, lengths):
    torch.manual_seed(0)
    layer = BiGRU(5, 3).double()
    found = []
    for alone in (False, True):
        monkeypatch.setattr(BiGRU, "alone", staticmethod(lambda device, alone=alone: alone))
        x = torch.randn(3, max(lengths), 5, generator=torch.Generator().manual_seed(1)).double()
        x.requires_grad_()
        states, final = layer.read(x, lengths)
        asked = [x, *layer.parameters()]
        weights = torch.linspace(0.1, 1, states.numel()).double().view_as(states)
        grads = torch.autograd.grad((states * weights).sum() + final.square().sum(), asked)
        found.append([states.detach(), final.detach(), *grads])
    torch.testing.assert_close(*found)
    assert (found[1][0][1, lengths[1] :] == 0).all()


def test_lengths_on_an_accelerator_are_sent_once():
    device = torch.device("meta")
    assert sizes_on((3, 1), device) is sizes_on((3, 1), device)
    assert sizes_on((3, 1), torch.device("cpu")).tolist() == [3, 1]
