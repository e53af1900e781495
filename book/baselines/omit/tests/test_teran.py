"""TERAN: one pair and word at a time, self-attention of sets, tokens that score, gradients, BERT's layers."""

import pytest
import torch
from local_weights import bert_folder
from torch_layer import layer_of_torch

from nclib.common.tokens import Tokens
from nclib.models import build

SIZES = {"feature_dim": 21, "vocab_size": 20, "n_regions": 4, "embed_dim": 8, "word_dim": 3}
LENGTHS = (4, 1, 6, 2, 6, 3)


def example(**options):
    """A model in double precision without dropout, three images, and captions as padded ids."""
    torch.manual_seed(0)
    model = build("teran", **SIZES, **{"layer_dropout": 0.0, **options}).double()
    images = torch.randn(3, 4, 21, dtype=torch.float64)
    return model, images, Tokens(torch.randint(1, 20, (6, 6)), LENGTHS)


def through(reasoning, rows):
    """One set (n, dim) alone through the layers."""
    for layer in reasoning.layers:
        rows = layer_of_torch(layer)(rows[None])[0]
    return rows


def unit(row):
    return row / (row.norm() + 1e-8)


def scoring(length, tail):
    """Positions of the tokens that score."""
    inner = list(range(1, length - tail))
    return inner or list(range(length))


@torch.no_grad()
def by_loop(model, images, tokens):
    """Scores (B, C), one image, caption, word and region at a time."""
    encoder, scores = model.image_encoder, torch.zeros(len(images), len(tokens), dtype=torch.float64)
    first, last = model.common[0], model.common[-1]
    for i, picture in enumerate(images):
        x = torch.cat([torch.zeros(1, 21, dtype=torch.float64), picture])
        x = torch.stack([encoder.place[2](torch.relu(encoder.place[0](row))) for row in x])
        x = through(first, encoder.fc(through(encoder.reason, x)))
        regions = [unit(row) for row in x[1:]]
        for c, length in enumerate(tokens.lengths):
            alone = Tokens(tokens.ids[c : c + 1, :length], (length,))
            words = through(last, model.text_encoder(alone)[0][0])
            for j in scoring(length, model.tail):
                scores[i, c] += max(float(unit(words[j]) @ region) for region in regions)
    return scores


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("tail", "budget"), [(1, 1 << 30), (2, 1 << 30), (0, 1)])
def test_batch_equals_one_pair_at_a_time(shared, tail, budget):
    model, images, tokens = example(shared=shared, tail=tail)
    model.memory_budget = budget
    regions, words = model.encode_images(images), model.encode_captions(tokens)
    got = model.similarity(regions, words)
    torch.testing.assert_close(got, by_loop(model, images, tokens), rtol=0, atol=1e-12)
    wanted = sum(words.words[0, :4]) / 4
    torch.testing.assert_close(words.vectors[0], wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.paired_similarity(regions, words.select([0, 1, 2])), got.diagonal())


def test_sizes_are_those_of_the_official_runs():
    with torch.device("meta"):
        for feature_dim in (2048, 2053):
            model = build("teran", feature_dim=feature_dim, vocab_size=9)
            encoder = model.image_encoder
            assert [layer.heads for layer in encoder.reason.layers] == [4] * 4
            assert encoder.place[0].weight.shape == (2048, feature_dim)
            assert {layer.first.weight.shape for layer in encoder.reason.layers} == {(2048, 2048)}
            assert [len(part.layers) for part in model.common] == [2, 2]
            assert {layer.first.weight.shape for layer in model.common[0].layers} == {(2048, 1024)}
        assert len(build("teran", feature_dim=2048, vocab_size=9, shared=True).common) == 1


def test_words_are_read_behind_the_first_layers_of_bert(tmp_path):
    bert_folder(tmp_path / "bert", num_hidden_layers=4)
    given = {**SIZES, "vocab_size": 13, "text": "bert", "text_folder": str(tmp_path / "bert")}
    model = build("teran", **given, bert_layers=2).eval()
    tower = model.text_encoder.tower
    assert len(tower.encoder.layer) == 2
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 3, 0, 0]])
    with torch.no_grad():
        read = model.text_encoder.read(Tokens(ids, (5, 3)))[0]
        whole = build("teran", **given).eval().text_encoder.tower  # all four, as there are no six
        kept = whole(input_ids=ids, attention_mask=(ids > 0).long(), output_hidden_states=True).hidden_states[
            2
        ]
    torch.testing.assert_close(read[0], kept[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(read[1, :3], kept[1, :3], rtol=0, atol=1e-6)
    images = torch.randn(2, 4, 21)
    model(images, Tokens(ids, (5, 3))).sum().backward()
    assert model.text_encoder.fc.weight.grad is not None
    assert all(p.grad is None for p in tower.parameters())  # without finetune
