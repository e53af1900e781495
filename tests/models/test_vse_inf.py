"""VSE-infinity: learned pooling, padding, and random thinning."""

import math

import pytest
import torch

from nclib.common.tokens import Tokens
from nclib.models import build
from nclib.models.vse_inf import GPO, keep_rows, position_codes

SIZES = {"feature_dim": 6, "vocab_size": 9, "n_regions": 4, "embed_dim": 8, "word_dim": 3}


def drawn_pool():
    torch.manual_seed(0)
    return GPO(4, 3).double()


def test_ranks_are_weighed_by_what_a_gru_reads_from_their_codes():
    pool = drawn_pool()
    angle = [[i / 10000 ** (k / 4) for k in (0, 2)] for i in range(3)]
    codes = torch.tensor([[f(x) for x in row for f in (math.sin, math.cos)] for row in angle]).double()
    torch.testing.assert_close(position_codes(3, 4), codes, rtol=1e-6, atol=1e-6)
    found = pool.coefficients([2, 3])
    for row, n in zip(found, (2, 3), strict=True):
        states = pool.gru(position_codes(n, 4)[None])[0][0]
        logits = (states[:, :3] + states[:, 3:]) / 2 @ pool.score.weight[0] / 0.1
        torch.testing.assert_close(row[:n], logits.softmax(0))
        assert not row[n:].any()


def test_padding_may_hold_anything():
    pool = drawn_pool()
    torch.manual_seed(0)
    rows = -5 - torch.rand(3, 4, 4, dtype=torch.float64)  # all below zero: padding must not win the sort
    sizes = (4, 1, 2)
    dirty = rows.clone()
    for i, size in enumerate(sizes):
        dirty[i, size:] = 1e4
    assert torch.equal(pool(rows, sizes), pool(dirty, sizes))
    for i, size in enumerate(sizes):
        weight = pool.coefficients([size])[0]
        wanted = (weight[:, None] * rows[i, :size].sort(dim=0, descending=True).values).sum(0)
        torch.testing.assert_close(pool(dirty, sizes)[i], wanted)


def test_gradient_by_finite_differences():
    pool = drawn_pool()
    torch.manual_seed(0)
    rows = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pool(x, (4, 1, 2)), (rows,))


def test_kept_rows_move_to_the_front_in_order():
    keep = torch.tensor([[True, False, True], [False, True, False]])
    moved, sizes = keep_rows(keep, torch.tensor([[1, 2, 3], [4, 5, 6]]))
    assert sizes == (2, 1)
    assert moved.tolist() == [[1, 3], [5, 4]]
    moved, _ = keep_rows(keep, torch.arange(12.0).view(2, 3, 2))
    assert moved[0].tolist() == [[0, 1], [4, 5]]


def test_thinning_only_in_training_and_at_the_stated_rates():
    torch.manual_seed(0)
    model = build("vse_inf", **{**SIZES, "vocab_size": 100}, drop=0.4)
    ids = torch.full((200, 50), 50)
    thinned = model.kept_tokens(Tokens(ids, (50,) * 200))
    left = sum(thinned.lengths) / ids.numel()
    assert left == pytest.approx(1 - 0.4 * 0.4, abs=0.01)
    valid = torch.cat([row[:n] for row, n in zip(thinned.ids, thinned.lengths, strict=True)])
    assert float((valid == 3).sum()) / ids.numel() == pytest.approx(0.2, abs=0.02)
    assert float(((valid != 3) & (valid != 50)).sum()) / ids.numel() == pytest.approx(0.04, abs=0.01)
    short = model.kept_tokens(Tokens(torch.tensor([[7, 0, 0]] * 300), (1,) * 300))
    assert set(short.lengths) == {1}
    images = torch.randn(3, 4, 6)
    tokens = Tokens(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]] * 4), (8,) * 4)
    assert not torch.equal(model(images, tokens), model(images, tokens))
    model.eval()
    assert torch.equal(model(images, tokens), model(images, tokens))
    quiet = build("vse_inf", **SIZES, drop=0.0)
    assert torch.equal(quiet(images, tokens), quiet(images, tokens))


@pytest.mark.parametrize("norm_over", ["all", "padded"])
def test_the_batch_norm_counts_all_regions_or_kept_ones_and_zeros(norm_over):
    images = torch.randn(5, 4, 6)
    model = build("vse_inf", **SIZES, drop=0.4, norm_over=norm_over)
    torch.manual_seed(7)
    keep = torch.rand(5, 4) >= 0.4
    sizes, encoder = tuple(keep.sum(1).tolist()), model.image_encoder
    assert 0 < min(sizes) < max(sizes)
    rows, places = [], []  # what the norm counts, and where the kept regions stand in it
    for image, kept in zip(images, keep.tolist(), strict=True):
        own = [row for row, k in zip(image, kept, strict=True) if k or norm_over == "all"]
        stay = [i for i, k in enumerate(kept) if k] if norm_over == "all" else range(len(own))
        places += [len(rows) + i for i in stay]
        rows += own + [torch.zeros(6)] * (max(sizes) - len(own))
    counted = torch.stack(rows)
    first = encoder.first(counted)
    unit = (first - first.mean(0)) / (first.var(0, unbiased=False) + encoder.norm.eps).sqrt()
    expected = encoder.fc(counted) + encoder.second(unit.relu())
    torch.manual_seed(7)
    regions, found = model.kept_regions(images)
    assert found == sizes
    torch.testing.assert_close(
        torch.cat([r[:n] for r, n in zip(regions, sizes, strict=True)]), expected[places]
    )
    torch.testing.assert_close(encoder.norm.running_mean, 0.1 * first.mean(0))
    model.eval()
    assert model.kept_regions(images)[1] == (4,) * 5
