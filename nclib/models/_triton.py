"""Triton kernels of :mod:`nclib.models.sgraf_fused`.

It alone imports this file, where triton is installed. A program takes an image with its R regions, padded to
K, and P captions of w words, padded to W: T = P W words side by side. Vectors of D numbers pass through in
blocks of B; nothing of that width is kept.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from nclib.models import cross, encoders

LEAK = tl.constexpr(cross.LEAK)
EPS = tl.constexpr(encoders.EPS)
TINY = tl.constexpr(1.1754943508222875e-38)  # smallest normal float32


@triton.jit
def _places(n, w, P: tl.constexpr, W: tl.constexpr):
    """Image and first caption of a program; its words' captions, places in them, and which there are."""
    blocks = tl.cdiv(n, P)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks) * P
    t = tl.arange(0, P * W)
    c, j = first + t // W, t % W
    return image, first, c, j, (c < n) & (j < w)


@triton.jit
def _block(at, rows, there, start, D, B: tl.constexpr):
    """B columns of a matrix of D columns, from ``start`` on, zero where there is no row or column."""
    d = start + tl.arange(0, B)
    return tl.load(at + rows[:, None] * D + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def nodes(
    regions_at, words_at, gram_at, weight_at, bias_at,
    nodes_at, score_at, share_at, scale_at, extent_at, length_at,
    R, n, w, D, S, temperature,
    KEPT: tl.constexpr, PRECISION: tl.constexpr,
    P: tl.constexpr, W: tl.constexpr, K: tl.constexpr, V: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Local nodes into (B, n, w + 1, S) behind the global ones; scores, shares and lengths if KEPT."""
    # Plan: 1. raw scores, block by block; 2. LeakyReLU, norm over the words of a caption, softmax over the
    # regions; 3. the contexts' lengths from the regions' Gram matrix; 4. contexts once more block by block:
    # squared gaps to the words go straight into the linear map; 5. unit length.
    image, first, c, j, there = _places(n, w, P, W)
    r, s = tl.arange(0, K), tl.arange(0, V)
    own, at = r < R, c * w + j
    regions_at += image * R * D
    raw = tl.zeros((K, P * W), tl.float32)
    for start in range(0, D, B):
        x = _block(regions_at, r, own, start, D, B)
        y = _block(words_at, at, there, start, D, B)
        raw = tl.dot(x, tl.trans(y), raw, input_precision=PRECISION)
    cube = tl.reshape(tl.where(raw > 0, raw, LEAK * raw), (K, P, W))
    scale = (tl.sqrt(tl.sum(cube * cube, 2)) + EPS) / temperature
    score = tl.reshape(cube / scale[:, :, None], (K, P * W))
    shown = tl.where(own[:, None], score, float("-inf"))
    share = tl.exp(shown - tl.max(shown, 0)[None, :])
    share = share / tl.sum(share, 0)[None, :]
    gram = _block(gram_at + image * R * R, r, own, 0, R, K)
    square = tl.sum(share * tl.dot(gram, share, input_precision=PRECISION), 0)
    extent = tl.sqrt(tl.maximum(square, 0.0)) + EPS
    z = tl.zeros((P * W, V), tl.float32)
    flipped = tl.trans(share)
    for start in range(0, D, B):
        x = _block(regions_at, r, own, start, D, B)
        y = _block(words_at, at, there, start, D, B)
        gap = tl.dot(flipped, x, input_precision=PRECISION) / extent[:, None] - y
        z = tl.dot(
            gap * gap, tl.trans(_block(weight_at, s, s < S, start, D, B)), z, input_precision=PRECISION
        )
    z += tl.load(bias_at + s, mask=s < S, other=0.0)[None, :]
    length = tl.sqrt(tl.sum(z * z, 1)) + EPS
    node = (image * n + c) * (w + 1) + j + 1
    inside = there[:, None] & (s < S)[None, :]
    tl.store(nodes_at + node[:, None] * S + s[None, :], z / length[:, None], mask=inside)
    if KEPT:
        entries = (image * R + r[:, None]) * n * w + at[None, :]
        valid = own[:, None] & there[None, :]
        tl.store(score_at + entries, score, mask=valid)
        tl.store(share_at + entries, share, mask=valid)
        captions = first + tl.arange(0, P)
        norms = (image * R + r[:, None]) * n + captions[None, :]
        tl.store(scale_at + norms, scale, mask=own[:, None] & (captions < n)[None, :])
        tl.store(extent_at + image * n * w + at, extent, mask=there)
        tl.store(length_at + node, length, mask=there)


@triton.jit
def contexts_back(
    regions_at, words_at, share_at, extent_at, pull_at,
    squares_at, d_share_at, d_regions_at, d_words_at,
    R, n, w, D,
    PRECISION: tl.constexpr, P: tl.constexpr, W: tl.constexpr, K: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Squared gaps (B, n w, D), and gradients for shares (B, R, n w), regions and words through contexts.

    ``pull`` (B, n w, D), times the gaps, is the gradient for the unit contexts. Gradients for regions and
    words are added to what is there.
    """
    # Plan: 1. squared gaps, and how far the gradient points along each unit context; 2. the same blocks
    # again: the words' gradient, then that of the contexts, which gives those of shares and regions.
    image, _, c, j, there = _places(n, w, P, W)
    r = tl.arange(0, K)
    own, at = r < R, c * w + j
    regions_at += image * R * D
    d_regions_at += image * R * D
    pull_at += image * n * w * D
    squares_at += image * n * w * D
    entries = (image * R + r[:, None]) * n * w + at[None, :]
    valid = own[:, None] & there[None, :]
    share = tl.load(share_at + entries, mask=valid, other=0.0)
    extent = tl.load(extent_at + image * n * w + at, mask=there, other=1.0)
    flipped = tl.trans(share)
    along = tl.zeros((P * W,), tl.float32)
    for start in range(0, D, B):
        x = _block(regions_at, r, own, start, D, B)
        y = _block(words_at, at, there, start, D, B)
        unit = tl.dot(flipped, x, input_precision=PRECISION) / extent[:, None]
        gap = unit - y
        along += tl.sum(_block(pull_at, at, there, start, D, B) * gap * unit, 1)
        d = start + tl.arange(0, B)
        kept = there[:, None] & (d < D)[None, :]
        tl.store(squares_at + at[:, None] * D + d[None, :], gap * gap, mask=kept)
    along *= extent / tl.maximum(extent - EPS, TINY)
    d_share = tl.zeros((K, P * W), tl.float32)
    for start in range(0, D, B):
        x = _block(regions_at, r, own, start, D, B)
        y = _block(words_at, at, there, start, D, B)
        unit = tl.dot(flipped, x, input_precision=PRECISION) / extent[:, None]
        d_gap = _block(pull_at, at, there, start, D, B) * (unit - y)
        d = start + tl.arange(0, B)
        wide = (d < D)[None, :]
        tl.atomic_add(d_words_at + at[:, None] * D + d[None, :], -d_gap, mask=there[:, None] & wide)
        d_context = (d_gap - unit * along[:, None]) / extent[:, None]
        d_share = tl.dot(x, tl.trans(d_context), d_share, input_precision=PRECISION)
        d_x = tl.dot(share, d_context, input_precision=PRECISION)
        tl.atomic_add(d_regions_at + r[:, None] * D + d[None, :], d_x, mask=own[:, None] & wide)
    tl.store(d_share_at + entries, d_share, mask=valid)
