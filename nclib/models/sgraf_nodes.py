"""Similarity nodes of SGR and SAF for all pairs of a batch, and graph reasoning between them.

A pair (image b, caption c) has a global node s_0 = l2(W_g (v_b - t_c)^2 + b_g) and one node per word,
s_j = l2(W_l (c_j - t_j)^2 + b_l), where c_j is the word's attended context (SGRAF, arXiv 2101.01368, Eqs.
2-5, with the LeakyReLU and the biases of the official code). :func:`plain_nodes` is these formulas.

The contexts of a batch of 128 pairs of 1024-d vectors would take gigabytes. :func:`pair_nodes` never stores
them: :class:`_SquaredGaps` goes through images in blocks that fit in the cache, and computes the contexts of
a block again in the backward pass. On a CPU that is also a fifth faster than automatic differentiation.

One step of reasoning is X <- ReLU(softmax(Q K^T) X A_u + b_u) with Q = X A_q + b_q and K = X A_k + b_k (Eqs.
6-8). The logits <Q_i, K_j> are x_i M x_j + r x_j, with M = A_q A_k^T and r = A_k b_q, up to terms that are
equal for all keys j, which the softmax ignores: one map instead of two. The last step is needed at node 0
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.models.cross import LEAK, raw_scores
from nclib.models.encoders import EPS, l2

SHORT = 16
"""On a CPU, torch's own softmax leaves the vector units idle along axes shorter than this."""


def plain_nodes(*inputs: Tensor, temperature: float) -> Tensor:
    """Similarity nodes of all pairs of B images and n captions of w words, straight from the formulas.

    Parameters
    ----------
    vectors, regions : Tensor, (..., B, D) and (..., B, R, D)
        Global vectors of the images and their unit regions.
    captions, words : Tensor, (..., n, D) and (..., n, w, D)
        Global vectors of the captions and their unit words, zero where padded.
    weight_g, bias_g, weight_l, bias_l : Tensor, (S, D) and (S,)
        Linear maps of the global and of the local squared differences.
    temperature : float
        Inverse temperature of the attention.

    Returns
    -------
    Tensor, (..., B, n, w + 1, S)
        Unit vectors; node 0 of a pair is the global one.
    """
    vectors, regions, captions, words, weight_g, bias_g, weight_l, bias_l = inputs
    raw = F.leaky_relu(torch.einsum("...brd,...nwd->...brnw", regions, words), LEAK)
    share = torch.softmax(temperature * l2(raw), dim=-3)
    context = l2(torch.einsum("...brnw,...brd->...bnwd", share, regions))
    whole = (vectors[..., :, None, :] - captions[..., None, :, :]).square()  # (..., B, n, D)
    local = (context - words[..., None, :, :, :]).square()  # (..., B, n, w, D)
    nodes = (F.linear(whole, weight_g, bias_g)[..., None, :], F.linear(local, weight_l, bias_l))
    return l2(torch.cat(nodes, -2))


def pair_nodes(*inputs: Tensor, temperature: float, block: int) -> Tensor:
    """Similarity nodes without storing contexts; values and gradients of any order are the same.

    Parameters
    ----------
    *inputs, temperature
        As in :func:`plain_nodes`, without leading dimensions.
    block : int
        Images whose contexts are computed at a time.

    Returns
    -------
    Tensor, (B, n, w + 1, S)
    """
    vectors, regions, captions, words, weight_g, bias_g, weight_l, bias_l = inputs
    raw = F.leaky_relu(raw_scores(regions, words), LEAK)  # (B, R, n, w)
    share = torch.softmax(temperature * _unit(raw), dim=1)
    whole = F.linear((vectors[:, None] - captions).square(), weight_g, bias_g)  # (B, n, S)
    local = _SquaredGaps.apply(block, share.flatten(2), regions, words.flatten(0, 1), weight_l, bias_l)
    return _unit(torch.cat([whole[:, :, None], local.unflatten(1, words.shape[:2])], 2))


def reason_over_pairs(nodes: Tensor, absent: Tensor | None, maps: Sequence[Tensor], *, block: int) -> Tensor:
    """Run the steps of graph reasoning on all pairs.

    Parameters
    ----------
    nodes, absent : Tensor, (P, N, S) and, optional, (P, 1, N)
        ``absent`` is 0 at nodes and -inf at padding.
    maps : sequence of Tensor
        For each step M (S, S), r (S), A_u (S, S) as (in, out), b_u (S).
    block : int
        Pairs that are computed at a time.

    Returns
    -------
    Tensor, (P, S)
        Node 0 of each pair after the last step.
    """
    found, last = [], len(maps) - 4
    for i in range(0, len(nodes), block):
        x, away = nodes[i : i + block], None if absent is None else absent[i : i + block]
        for t in range(0, len(maps), 4):
            x = _Step.apply(1 if t == last else x.shape[1], away, x, *maps[t : t + 4])
        found.append(x[:, 0])
    return torch.cat(found)


def softmax_(logits: Tensor) -> Tensor:
    """Overwrite logits (..., N) with their softmax along the last axis, written out where torch's is slow."""
    if logits.device.type != "cpu" or logits.shape[-1] >= SHORT:
        return torch.softmax(logits, -1, out=logits)
    logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    return logits.div_(logits.sum(-1, keepdim=True))


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Map the last axis of (P, N, S); one product for all rows."""
    return torch.addmm(bias, x.flatten(0, 1), weight).view(x.shape)


def _unit(x: Tensor) -> Tensor:
    """:func:`l2`, with a backward pass of three operations."""
    unit: Tensor = _Unit.apply(x)
    return unit


# Each of the functions below has a backward pass by hand, which is quicker than that of autograd or needs
# less memory. A backward pass that is itself differentiated (create_graph) goes through the plain formula.


def _differentiate(formula: Callable[..., Tensor], ctx: Any, inputs: Sequence[Any], grad: Tensor) -> Any:
    """Return gradients of a formula for its last inputs, None where not needed; differentiable themselves.

    One input may be computed from another: views cut that path, which belongs to the graph around.
    """
    views = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
    wanted = ctx.needs_input_grad[-len(views) :]
    asked = [view for view, want in zip(views, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(formula(*views), asked, grad, create_graph=True))
    return tuple(next(found) if want else None for want in wanted)


def _along(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """Return what to take off: u = x / (|x| + eps) has dx = (du - u along) / (|x| + eps).

    along = <du, u> (|x| + eps) / |x|; where x is zero the fraction is finite and multiplies zero.
    """
    size = (length - EPS).clamp_min(torch.finfo(length.dtype).tiny)
    return (grad * unit).sum(-1, keepdim=True).mul_(length / size)


class _Unit(torch.autograd.Function):
    """Unit vectors along the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).add_(EPS)
        unit = x / length
        ctx.save_for_backward(x, unit, length)
        return unit

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Propagate to the vectors."""
        x, unit, length = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiate(l2, ctx, [x], grads[0])
        return torch.addcmul(grads[0], unit, _along(grads[0], unit, length), value=-1).div_(length)


class _Step(torch.autograd.Function):
    """A step of reasoning, of which the first ``asked`` nodes are wanted: (P, asked, S)."""

    @staticmethod
    def forward(ctx: Any, asked: int, absent: Tensor | None, nodes: Tensor, *maps: Tensor) -> Tensor:
        merged, shift, update, bias = maps
        query = _affine(nodes[:, :asked], merged, shift)
        edges = query @ nodes.mT
        edges = softmax_(edges if absent is None else edges.add_(absent))
        mixed = edges @ nodes
        after = _affine(mixed, update, bias).relu_()
        ctx.asked, ctx.absent = asked, absent
        ctx.save_for_backward(nodes, *maps, query, edges, mixed, after)
        return after

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Propagate to the nodes and the maps."""
        nodes, *maps, query, edges, mixed, after = ctx.saved_tensors
        merged, _, update, _ = maps
        with torch.autocast(nodes.device.type, enabled=False):
            if torch.is_grad_enabled():
                formula = partial(_step, ctx.asked, ctx.absent)
                return None, None, *_differentiate(formula, ctx, [nodes, *maps], grads[0])
            d_out = torch.ops.aten.threshold_backward(grads[0], after, 0).flatten(0, 1)
            d_mixed = (d_out @ update.t()).view_as(mixed)
            d_edges = d_mixed @ nodes.mT
            d_edges.sub_((d_edges * edges).sum(-1, keepdim=True)).mul_(edges)
            d_query = (d_edges @ nodes).flatten(0, 1)
            d_nodes = torch.baddbmm(edges.mT @ d_mixed, d_edges.mT, query)
            d_nodes[:, : ctx.asked] += (d_query @ merged.t()).view_as(query)
            d_merged = nodes[:, : ctx.asked].flatten(0, 1).t() @ d_query
            d_update = mixed.flatten(0, 1).t() @ d_out
            return None, None, d_nodes, d_merged, d_query.sum(0), d_update, d_out.sum(0)


def _step(
    asked: int,
    absent: Tensor | None,
    nodes: Tensor,
    merged: Tensor,
    shift: Tensor,
    update: Tensor,
    bias: Tensor,
) -> Tensor:
    edges = (nodes[:, :asked] @ merged + shift) @ nodes.mT
    edges = torch.softmax(edges if absent is None else edges + absent, -1)
    return torch.relu(edges @ nodes @ update + bias)


class _SquaredGaps(torch.autograd.Function):
    """W (l2(a^T v) - t)^2 + b for all images and words, (B, n w, S); no context (B, n w, D) is stored.

    ``share`` a is (B, R, n w), ``regions`` v (B, R, D), ``words`` t (n w, D), ``weight`` W (S, D), ``bias``
    b (S,). What is kept has no D: the contexts' lengths.
    """

    @staticmethod
    def forward(
        ctx: Any, block: int, share: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        n_images, (n_words, dim) = len(regions), words.shape
        ctx.block = block = min(block, n_images)
        out, length = (regions.new_empty(n_images, n_words, k) for k in (len(bias), 1))
        buffer = regions.new_empty(block, n_words, dim)
        for i in range(0, n_images, block):
            part = slice(i, i + block)
            context = torch.bmm(share[part].mT, regions[part], out=buffer[: len(regions[part])])
            torch.linalg.vector_norm(context, dim=-1, keepdim=True, out=length[part])
            context.div_(length[part].add_(EPS)).sub_(words).square_()
            torch.addmm(bias, context.view(-1, dim), weight.t(), out=out[part].view(-1, len(bias)))
        ctx.save_for_backward(share, regions, words, weight, bias, length)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Propagate to shares, regions, words and the map, computing the contexts again."""
        (grad,), (*inputs, length) = grads, ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            if torch.is_grad_enabled():
                return None, *_differentiate(_squared_gaps, ctx, inputs, grad)
            share, regions, words, weight, _ = inputs
            dim = words.shape[1]
            d_share, d_regions = torch.empty_like(share), torch.empty_like(regions)
            d_words, d_weight = torch.zeros_like(words), torch.zeros_like(weight)
            buffers = regions.new_empty(3, ctx.block, *words.shape)
            for i in range(0, len(regions), ctx.block):
                part = slice(i, i + ctx.block)
                v, a, dz = regions[part], share[part], grad[part].flatten(0, 1)
                unit, gap, d_gap = buffers[:, : len(v)].unbind()
                torch.bmm(a.mT, v, out=unit).div_(length[part])
                torch.sub(unit, words, out=gap)
                torch.mm(dz, 2 * weight, out=d_gap.view(-1, dim)).mul_(gap.view(-1, dim))
                d_weight.addmm_(dz.t(), gap.square_().view(-1, dim))
                d_words -= d_gap.sum(0)
                d_gap.addcmul_(unit, _along(d_gap, unit, length[part]), value=-1).div_(length[part])
                torch.bmm(v, d_gap.mT, out=d_share[part])
                torch.bmm(a, d_gap, out=d_regions[part])
            return None, d_share, d_regions, d_words, d_weight, grad.sum((0, 1))


def _squared_gaps(share: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear((l2(share.mT @ regions) - words).square(), weight, bias)
