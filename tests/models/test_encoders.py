"""Encoders: their sizes, their errors, words from a file, and directions that run alone."""

import numpy as np
import pytest
import torch
from refusals import refused
from registered import REGISTERED

from nclib.common.options import rules
from nclib.common.tokens import Tokens
from nclib.models import build, options
from nclib.models.encoders import BiGRU, sizes_on

SIZES = {"feature_dim": 6, "vocab_size": 9, "n_regions": 4, "embed_dim": 8, "sim_dim": 4, "word_dim": 3}


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
@pytest.mark.parametrize(
    ("shape", "ids", "lengths", "named"),
    [
        ((2, 4, 5), [[1, 2]], (2,), ["images", ", 6)", "(2, 4, 5)"]),
        ((2, 6), [[1, 2]], (2,), ["images", "(2, 6)"]),
        ((0, 4, 6), [[1, 2]], (2,), ["images", "none of them 0", "(0, 4, 6)"]),
        ((1, 4, 6), [[1, 9]], (2,), ["1 to 9", "0 to 8"]),
        ((1, 4, 6), [[1, -1]], (2,), ["-1", "0 to 8"]),
        ((1, 4, 6), [], (), ["at least one caption"]),
        ((1, 4, 6), [[1, 2]], (0,), ["empty"]),
    ],
)
def test_wrong_input_is_named(name, shape, ids, lengths, named):
    ids, model = torch.tensor(ids, dtype=torch.long).view(len(ids), 2), build(name, **SIZES).eval()
    refused(ValueError, lambda: model(torch.randn(shape), Tokens(ids, lengths)), *named)


def test_options_include_those_of_the_bases():
    assert list(rules(options("sgr")))[-3:] == ["dropout", "temperature", "steps"]
    assert options("sgraf").catalogue()["temperature"] == "9.0"
    assert options("scan").catalogue()["direction"] == "'t2i'"
    assert {"text_folder", "image_folder", "embed_dim"} <= set(rules(options("vse_inf")))


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        *((name, {}, ["images", "4", "5"]) for name in ("sgr", "saf", "sgraf")),  # slots of regions are fixed
        ("sgr", {"vocab_size": 7, "word_vectors": True}, ["word_vectors", "(at most 7, 3)", "(8, 3)"]),
        ("vse_inf", {"text": "bert", "text_folder": "x", "word_vectors": True}, ["word_vectors", "'bigru'"]),
    ],
)
def test_what_a_model_cannot_read_is_refused(name, options, named, tmp_path):
    np.save(tmp_path / "vectors.npy", np.zeros((8, 3)))
    if "word_vectors" in options:
        options = options | {"word_vectors": str(tmp_path / "vectors.npy")}
    refused(ValueError, lambda: build(name, **SIZES | options).encode_images(torch.randn(2, 5, 6)), *named)


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
