"""VSRN: one image, one region, one caption and one word at a time; its own loss; what it refuses."""

import itertools

import pytest
import torch
from baselines.omit.vsrn import RegionRelations

from nclib.common.tokens import Tokens
from nclib.models import build

SIZES = {"feature_dim": 6, "vocab_size": 20, "n_regions": 4, "embed_dim": 8, "word_dim": 5, "caption_dim": 7}
IDS = torch.tensor([[1, 5, 9, 2, 0], [1, 7, 2, 0, 0], [1, 4, 4, 8, 2]])
LENGTHS = (4, 3, 5)


def example(norm="batch"):
    """A model in double precision whose batch norms and decoder do something, images and captions."""
    torch.manual_seed(0)
    model = build("vsrn", **SIZES, norm=norm).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.decoder.drop.p = 0.0
    return model, torch.randn(3, 4, 6, dtype=torch.float64), Tokens(IDS, LENGTHS)


def gru(x, h, w_x, w_h, b_x, b_h):
    """One step of a GRU for one sample."""
    n = len(h)
    given, kept = w_x @ x + b_x, w_h @ h + b_h
    r, z = torch.sigmoid(given[:n] + kept[:n]), torch.sigmoid(given[n : 2 * n] + kept[n : 2 * n])
    new = torch.tanh(given[2 * n :] + r * kept[2 * n :])
    return (1 - z) * new + z * h


def read(cell, rows):
    """States of a GRU over the rows of one sample."""
    weights = cell.weight_ih_l0, cell.weight_hh_l0, cell.bias_ih_l0, cell.bias_hh_l0
    h, states = torch.zeros(cell.hidden_size, dtype=torch.float64), []
    for row in rows:
        h = gru(row, h, *weights)
        states.append(h)
    return states


def normed(norm, sets):
    """Batch norm of every number over all rows of all sets, in training or with the running statistics."""
    rows = torch.stack([row for rows in sets for row in rows])
    mean, var = (rows.mean(0), rows.var(0, False)) if norm.training else (norm.running_mean, norm.running_var)
    scale = norm.weight / (var + norm.eps).sqrt()
    return [torch.stack([(row - mean) * scale + norm.bias for row in rows]) for rows in sets]


def related_regions(model, images):
    """Regions after the four layers, one pair of regions at a time."""

    def scaled(v):
        return torch.stack([v[:, d] / v[:, d].norm() for d in range(v.shape[1])], 1)

    sets = [image @ model.image_fc.weight.t() + model.image_fc.bias for image in images]
    sets = [scaled(v) for v in sets] if model.norm == "unit" else sets
    for layer in model.relations:
        updates = []
        for v in sets:
            n, rows = len(v), []
            for i in range(n):
                total = torch.zeros(v.shape[1], dtype=torch.float64)
                for j in range(n):
                    total = total + layer.phi(v[i]) @ layer.psi(v[j]) / n * layer.w_g(v[j])
                rows.append(layer.w_r(total))
            updates.append(torch.stack(rows))
        sets = [v + u for v, u in zip(sets, normed(layer.norm, updates), strict=True)]
    return [scaled(v) for v in sets]


def told(decoder, related, ids):
    """Negative log-likelihood of one caption, one word and one region at a time."""
    outputs = read(decoder.read, related @ decoder.project.weight.t() + decoder.project.bias)
    state, total = outputs[-1], 0.0
    cell = decoder.step
    for word, following in itertools.pairwise(ids):
        energies = [
            decoder.score(torch.tanh(decoder.of_output(o) + decoder.of_state(state))).squeeze()
            for o in outputs
        ]
        shares = torch.softmax(torch.stack(energies), 0)
        context = sum(share * o for share, o in zip(shares, outputs, strict=True))
        given = torch.cat([decoder.embedding.weight[word], context])
        state = gru(given, state, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
        total = total - torch.log_softmax(decoder.out(state), 0)[following]
    return total


@pytest.mark.parametrize("norm", ["batch", "unit"])
@pytest.mark.parametrize("training", [True, False])
def test_encodings_and_losses_equal_the_plain_loop(norm, training):
    model, images, tokens = example(norm)
    model.train(training)
    related = related_regions(model, images)
    finals = [read(model.image_gru, rows)[-1] for rows in related]
    if norm == "batch":
        (rows,) = normed(model.image_norm, [torch.stack(finals)])
        finals = list(rows)
    v = torch.stack([f / f.norm() for f in finals])
    t = torch.stack(
        [
            read(model.text_gru, model.embedding.weight[ids[:n]])[-1]
            for ids, n in zip(IDS, LENGTHS, strict=True)
        ]
    )
    t = t / t.norm(dim=1, keepdim=True)
    found, captions = model.encode_images(images), model.encode_captions(tokens)
    torch.testing.assert_close(found.vectors, v, rtol=0, atol=1e-6)
    torch.testing.assert_close(captions.vectors, t, rtol=0, atol=1e-6)
    torch.testing.assert_close(model.similarity(found, captions), v @ t.t(), rtol=0, atol=1e-6)
    if not training:
        assert found.related is None
        assert captions.ids is None
        return
    terms = model.own_loss(found, captions)
    S, ranking = v @ t.t(), 0.0
    for i in range(3):
        ranking += max(max(0.0, 0.2 + S[i, j] - S[i, i]) for j in range(3) if j != i)
        ranking += max(max(0.0, 0.2 + S[j, i] - S[i, i]) for j in range(3) if j != i)
    caption = sum(told(model.decoder, related[i], IDS[i, : LENGTHS[i]]) for i in range(3)) / 3
    torch.testing.assert_close(terms["ranking"], torch.as_tensor(ranking), rtol=0, atol=1e-6)
    torch.testing.assert_close(terms["caption"], caption, rtol=0, atol=1e-6)
    sum(terms.values()).backward()
    moved = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # w_r's bias is taken out again by the batch norm that follows
    assert all(name.endswith("w_r.bias") for name in moved), moved


def test_the_untrained_layer_changes_nothing():
    v = torch.randn(2, 4, 8)
    assert torch.equal(RegionRelations(8)(v), v)


def test_padding_is_neither_read_nor_told():
    model, images, tokens = example()
    dirty = IDS.masked_fill(torch.arange(5)[None] >= torch.tensor(LENGTHS)[:, None], 13)
    found = model.encode_images(images)
    clean, other = model.encode_captions(tokens), model.encode_captions(Tokens(dirty, LENGTHS))
    assert torch.equal(clean.vectors, other.vectors)
    for name, value in model.own_loss(found, clean).items():
        assert torch.equal(value, model.own_loss(found, other)[name])
    wider = Tokens(torch.nn.functional.pad(IDS, (0, 3)), LENGTHS)
    assert torch.equal(model.encode_captions(wider).ids, IDS)
    one = model.own_loss(found.select([0]), clean.select([0]))  # a single pair has no negatives
    assert one["ranking"] == 0
    alone = told(model.decoder, found.related[0], IDS[0, :4])
    torch.testing.assert_close(one["caption"], alone, rtol=0, atol=1e-6)
    joined = type(clean).concat([clean.select([1]), clean.select([2])])
    assert torch.equal(joined.ids, IDS[1:])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="norm='layer': must be one of 'batch', 'unit'"):
        build("vsrn", **SIZES, norm="layer")
    with pytest.raises(ValueError, match="caption_dim=0: must be a whole number, at least 1"):
        build("vsrn", **SIZES | {"caption_dim": 0})
    model, images, tokens = example()
    found, captions = model.encode_images(images), model.encode_captions(tokens)
    with pytest.raises(ValueError, match="pairs need as many images as captions, got 2 images and 3"):
        model.own_loss(found.select([0, 1]), captions)
    with pytest.raises(ValueError, match="own_loss needs encodings made in training mode"):
        model.own_loss(found, model.eval().encode_captions(tokens))
