"""Similarity nodes and graph reasoning of all pairs, computed and differentiated block by block.

**Nodes.** A pair (image b, caption c) has a global node s_0 = l2(W_g (v_b - t_c)^2 + b_g) and one node per
word, s_j = l2(W_l (c_j - t_j)^2 + b_l), where c_j is the word's attended context (SGRAF, arXiv 2101.01368,
Eqs. 2-5, with the LeakyReLU and the biases of the official code). The contexts of a batch of 128 pairs of
1024-d vectors would take gigabytes. They are never stored: images are taken in blocks that fit in the cache,
and the backward pass computes each block's contexts again from the attention weights, which are small.

Plan of the forward pass, for each block of images: raw scores by one product; LeakyReLU; each region's
scores divided by their norm over the words of a caption; softmax over regions; contexts by one batched
product, scaled to unit length; squared differences; the two linear maps; unit length. The backward pass goes
through the same steps in reverse. It keeps ``score``, ``share``, the nodes, and the norms ``scale``,
``extent`` and ``length``, none of which has D as a dimension.

**Reasoning.** One step is X <- ReLU(softmax(Q K^T) X A_u + b_u) with Q = X A_q + b_q and K = X A_k + b_k
(Eqs. 6-8). The logits <Q_i, K_j> are x_i M x_j + r x_j, with M = A_q A_k^T and r = A_k b_q, up to terms that
are equal for all keys j, which the softmax ignores: one map instead of two. The last step is needed at node 0
alone. Plan for each block of pairs and each step: queries y = x M + r, edges y x^T, softmax, mixture, update,
ReLU. The backward pass keeps y, edges, mixtures and states of all steps and goes through them in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.models.cross import LEAK
from nclib.models.encoders import EPS, l2

Linear = Callable[[Tensor, Tensor, Tensor], Tensor]


def pair_nodes(*inputs: Tensor, temperature: float, block: int) -> Tensor:
    """Similarity nodes of all pairs of B images and n captions of w words.

    Parameters
    ----------
    vectors, regions : Tensor, (B, D) and (B, R, D)
        Global vectors of the images and their unit regions.
    captions, words : Tensor, (n, D) and (n, w, D)
        Global vectors of the captions and their unit words, zero where padded.
    weight_g, bias_g, weight_l, bias_l : Tensor, (S, D) and (S,)
        Linear maps of the global and of the local squared differences.
    temperature : float
        Inverse temperature of the attention.
    block : int
        Images per block.

    Returns
    -------
    Tensor, (B, n, w + 1, S)
        Unit vectors; node 0 of a pair is the global one.
    """
    # A function's forward cannot see whether gradients are on, and without them nothing need be kept.
    return _PairNodes.apply(temperature, block, torch.is_grad_enabled(), *inputs)


def plain_nodes(*inputs: Tensor, temperature: float, linear: Linear = F.linear) -> Tensor:
    """Similarity nodes straight from the formulas: differentiable any number of times, in more memory.

    Under autocast products are in its number type, everything else in that of the regions.

    Parameters
    ----------
    *inputs, temperature
        As in :func:`pair_nodes`, the first four with any leading dimensions.
    linear : callable
        Computes the two maps.

    Returns
    -------
    Tensor, (..., B, n, w + 1, S)
    """
    vectors, regions, captions, words, weight_g, bias_g, weight_l, bias_l = inputs
    dtype = regions.dtype
    raw = F.leaky_relu(torch.einsum("...brd,...nwd->...brnw", regions, words).to(dtype), LEAK)
    share = torch.softmax(temperature * l2(raw), dim=-3)
    context = l2(torch.einsum("...brnw,...brd->...bnwd", share, regions).to(dtype))
    whole = (vectors[..., :, None, :] - captions[..., None, :, :]).square()  # (..., B, n, D)
    local = (context - words[..., None, :, :, :]).square()  # (..., B, n, w, D)
    nodes = (linear(whole, weight_g, bias_g)[..., None, :], linear(local, weight_l, bias_l))
    return l2(torch.cat(nodes, -2).to(dtype))


def _differentiate(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Gradients of a function of tensors, None where not ``wanted``, that can themselves be differentiated.

    One input may be computed from another: views cut that path, which belongs to the graph around.
    """
    views = [part.view_as(part) for part in inputs]
    asked = [view for view, want in zip(views, wanted, strict=True) if want]
    gradients = iter(torch.autograd.grad(function(*views), asked, grad, create_graph=True))
    return [next(gradients) if want else None for want in wanted]


class _PairNodes(torch.autograd.Function):
    """See :func:`pair_nodes`."""

    @staticmethod
    def forward(ctx: Any, temperature: float, block: int, keep: bool, *inputs: Tensor) -> Tensor:
        vectors, regions, captions, words, weight_g, bias_g, weight_l, bias_l = inputs
        n_images, n_regions, dim = regions.shape
        n, w, _ = words.shape
        size = weight_l.shape[0]
        words = words.contiguous()
        flat = words.view(n * w, dim)
        nodes = regions.new_empty(n_images, n, w + 1, size)
        block = min(block, n_images)
        held = n_images if keep else block
        score = regions.new_empty(held, n_regions, n, w)
        share = torch.empty_like(score)
        scale = regions.new_empty(held, n_regions, n, 1)
        extent = regions.new_empty(held, n * w, 1)
        length = regions.new_empty(held, n, w + 1, 1)
        buffer = regions.new_empty(block, n * w, dim)
        for i in range(0, n_images, block):
            part = regions[i : i + block]  # (b, R, D)
            b = part.shape[0]
            k = slice(i, i + b) if keep else slice(0, b)
            raw, context = score[k], buffer[:b]
            torch.mm(part.reshape(-1, dim), flat.t(), out=raw.view(-1, n * w))
            F.leaky_relu_(raw, LEAK)
            torch.linalg.vector_norm(raw, dim=-1, keepdim=True, out=scale[k])
            raw.div_(scale[k].add_(EPS).div_(temperature))
            torch.softmax(raw, dim=1, out=share[k])
            torch.bmm(share[k].view(b, n_regions, -1).transpose(1, 2), part, out=context)  # (b, n w, D)
            torch.linalg.vector_norm(context, dim=-1, keepdim=True, out=extent[k])
            context.div_(extent[k].add_(EPS)).sub_(flat).square_()
            _project(context, weight_l, bias_l, nodes[i : i + b, :, 1:], length[k, :, 1:])
            gap = vectors[i : i + b, None] - captions  # (b, n, D)
            _project(gap.square_(), weight_g, bias_g, nodes[i : i + b, :, :1], length[k, :, :1])
        ctx.temperature, ctx.block = temperature, block
        if keep:
            ctx.save_for_backward(*inputs, nodes, score, share, scale, extent, length)
        return nodes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate to images, captions and the two maps, recomputing the contexts.

        Each u = x / (|x| + eps) gives dx = (du - f u <du, u>) / (|x| + eps), f = (|x| + eps) / |x|.
        """
        with torch.autocast(grads[0].device.type, enabled=False):
            if torch.is_grad_enabled():  # create_graph: the gradient will be differentiated
                plain = partial(plain_nodes, temperature=ctx.temperature)
                gradients = _differentiate(plain, ctx.saved_tensors[:8], ctx.needs_input_grad[3:], grads[0])
                return None, None, None, *gradients
            return _PairNodes._backward(ctx, grads[0])

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        vectors, regions, captions, words, weight_g, _, weight_l, _, nodes, *saved = ctx.saved_tensors
        score, share, scale, extent, length = saved
        n_images, n_regions, dim = regions.shape
        n, w, _ = words.shape
        words = words.contiguous()
        flat, twice_g, twice_l = words.view(n * w, dim), 2 * weight_g, 2 * weight_l
        d_vectors, d_regions = torch.empty_like(vectors), torch.empty_like(regions)
        d_captions, d_flat = torch.zeros_like(captions), torch.zeros_like(flat)
        d_weight_g, d_weight_l = torch.zeros_like(weight_g), torch.zeros_like(weight_l)
        d_bias_g, d_bias_l = weight_g.new_zeros(weight_g.shape[0]), weight_l.new_zeros(weight_l.shape[0])
        buffers = regions.new_empty(3, ctx.block, n * w, dim)
        for i in range(0, n_images, ctx.block):
            k = slice(i, i + ctx.block)
            part = regions[k]
            b = part.shape[0]
            # the nodes' own normalisation
            along = (grad[k] * nodes[k]).sum(-1, keepdim=True).mul_(_factor(length[k]))
            dz = torch.addcmul(grad[k], nodes[k], along, value=-1).div_(length[k])  # (b, n, w + 1, S)
            # global node: squared difference of the global vectors
            dz_g = dz[:, :, 0].reshape(b * n, -1)
            gap = vectors[k, None] - captions  # (b, n, D)
            d_gap = torch.mm(dz_g, twice_g).view_as(gap).mul_(gap)
            d_weight_g.addmm_(dz_g.t(), gap.square_().view(-1, dim))
            d_bias_g += dz_g.sum(0)
            d_vectors[k] = d_gap.sum(1)
            d_captions -= d_gap.sum(0)
            # local nodes: squared difference of the normalised context and the word
            dz_l = dz[:, :, 1:].reshape(b * n * w, -1)
            d_bias_l += dz_l.sum(0)
            weights = share[k].view(b, n_regions, -1)  # (b, R, n w)
            unit, gap, d_gap = buffers[:, :b].unbind()
            torch.bmm(weights.transpose(1, 2), part, out=unit).div_(extent[k])  # (b, n w, D)
            torch.sub(unit, flat, out=gap)
            torch.mm(dz_l, twice_l, out=d_gap.view(-1, dim)).mul_(gap.view(-1, dim))
            d_weight_l.addmm_(dz_l.t(), gap.square_().view(-1, dim))
            d_flat -= d_gap.sum(0)
            along = torch.mul(d_gap, unit, out=gap).sum(-1, keepdim=True).mul_(_factor(extent[k]))
            d_context = d_gap.sub_(unit.mul_(along))  # still to be divided by the context's extent
            inverse = extent[k].reciprocal().view(b, 1, -1)
            d_part = torch.bmm(weights * inverse, d_context)  # (b, R, D)
            d_share = torch.bmm(part, d_context.transpose(1, 2)).mul_(inverse)  # (b, R, n w)
            # softmax over regions, then norm over the words of a caption (scaled), then LeakyReLU
            d_share.sub_((d_share * weights).sum(1, keepdim=True)).mul_(weights)
            d_score, value, norm = d_share.view(b, n_regions, n, w), score[k], scale[k]
            along = (d_score * value).sum(-1, keepdim=True)
            along.mul_(_factor(norm * ctx.temperature)).div_(ctx.temperature**2)
            d_score = torch.addcmul(d_score, value, along, value=-1).div_(norm)
            d_raw = torch.ops.aten.leaky_relu_backward(d_score, value, LEAK, True).view(-1, n * w)
            d_part.view(-1, dim).addmm_(d_raw, flat)
            d_flat.addmm_(d_raw.t(), part.reshape(-1, dim))
            d_regions[k] = d_part
        d_maps = (d_weight_g, d_bias_g, d_weight_l, d_bias_l)
        return None, None, None, d_vectors, d_regions, d_captions, d_flat.view_as(words), *d_maps


def _project(squares: Tensor, weight: Tensor, bias: Tensor, out: Tensor, length: Tensor) -> None:
    """Write l2(W squares + b) into ``out`` and the lengths before it, plus eps, into ``length``."""
    z = torch.addmm(bias, squares.view(-1, squares.shape[-1]), weight.t()).view(out.shape)
    length.copy_(torch.linalg.vector_norm(z, dim=-1, keepdim=True).add_(EPS))
    torch.div(z, length, out=out)


def _factor(extended: Tensor) -> Tensor:
    """(|x| + eps) / |x| from |x| + eps; finite where x is zero, where it multiplies zero."""
    return extended / (extended - EPS).clamp_min(torch.finfo(extended.dtype).tiny)


def softmax_(logits: Tensor) -> Tensor:
    """Overwrite ``logits`` with their softmax along the last axis.

    On a CPU, torch's own softmax leaves the vector units idle when the axis is shorter than 16: five times
    slower than these four calls.

    Parameters
    ----------
    logits : Tensor, (..., N)
    """
    if logits.device.type != "cpu" or logits.shape[-1] >= 16:
        return torch.softmax(logits, -1, out=logits)
    logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    return logits.div_(logits.sum(-1, keepdim=True))


def reason_over_pairs(nodes: Tensor, absent: Tensor | None, maps: Sequence[Tensor], *, block: int) -> Tensor:
    """Run the steps on all pairs.

    Parameters
    ----------
    nodes, absent : Tensor, (P, N, S) and, optional, (P, 1, N)
        ``absent`` is 0 at nodes and -inf at padding.
    maps : sequence of Tensor
        For each step M (S, S), r (S), A_u (S, S) as (in, out), b_u (S).
    block : int
        Pairs per block.

    Returns
    -------
    Tensor, (P, S)
        Node 0 of each pair after the last step.
    """
    # A function's forward cannot see whether gradients are on, and without them nothing need be kept.
    return _Reason.apply(nodes, absent, block, torch.is_grad_enabled(), *maps)


def plain_reasoning(nodes: Tensor, absent: Tensor | None, *maps: Tensor, linear: Linear = F.linear) -> Tensor:
    """:func:`reason_over_pairs` straight from the formulas: differentiable any number of times."""
    last = len(maps) - 4
    for t in range(0, len(maps), 4):
        merged, shift, update, bias = maps[t : t + 4]
        asking = nodes[:, :1] if t == last else nodes
        edges = linear(asking, merged.t(), shift) @ nodes.transpose(1, 2)
        edges = torch.softmax(edges if absent is None else edges + absent, -1)
        nodes = torch.relu(linear(edges @ nodes, update.t(), bias))
    return nodes[:, 0]


class _Reason(torch.autograd.Function):
    """See :func:`reason_over_pairs`."""

    @staticmethod
    def forward(
        ctx: Any, nodes: Tensor, absent: Tensor | None, block: int, keep: bool, *maps: Tensor
    ) -> Tensor:
        pairs, n, size = nodes.shape
        steps = len(maps) // 4
        rows = pairs if keep else min(block, pairs)
        asked = [n] * (steps - 1) + [1]
        asking = [nodes.new_empty(rows, q, size) for q in asked]
        edges = [nodes.new_empty(rows, q, n) for q in asked]
        mixed = [nodes.new_empty(rows, q, size) for q in asked]
        states = [nodes.new_empty(rows if q > 1 else pairs, q, size) for q in asked]
        for i in range(0, pairs, block):
            x = nodes[i : i + block]
            b = x.shape[0]
            k = slice(i, i + b) if keep else slice(0, b)
            for t in range(steps):
                merged, shift, update, bias = maps[4 * t : 4 * t + 4]
                q = asked[t]
                y, e, m = asking[t][k], edges[t][k], mixed[t][k]
                after = states[t][k] if t < steps - 1 else states[t][i : i + b]
                torch.addmm(shift, x[:, :q].reshape(-1, size), merged, out=y.view(-1, size))
                torch.bmm(y, x.transpose(1, 2), out=e)
                if absent is not None:
                    e.add_(absent[i : i + b])
                softmax_(e)
                torch.bmm(e, x, out=m)
                torch.addmm(bias, m.view(-1, size), update, out=after.view(-1, size))
                x = after.relu_()
        ctx.block, ctx.asked = block, asked
        out = states[-1][:, 0]
        if keep:
            ctx.save_for_backward(nodes, *maps, *asking, *edges, *mixed, *states, absent)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate to the nodes and the maps."""
        with torch.autocast(grads[0].device.type, enabled=False):
            if torch.is_grad_enabled():  # create_graph: the gradient will be differentiated
                *saved, absent = ctx.saved_tensors
                wanted = (ctx.needs_input_grad[0], *ctx.needs_input_grad[4:])

                def plain(nodes: Tensor, *maps: Tensor) -> Tensor:
                    return plain_reasoning(nodes, absent, *maps)

                first, *rest = _differentiate(plain, saved[: len(wanted)], wanted, grads[0])
                return first, None, None, None, *rest
            return _Reason._backward(ctx, grads[0])

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        asked, block = ctx.asked, ctx.block
        steps = len(asked)
        nodes, *rest = ctx.saved_tensors[:-1]
        maps, rest = rest[: 4 * steps], rest[4 * steps :]
        asking, edges, mixed, states = (rest[i * steps : (i + 1) * steps] for i in range(4))
        pairs, _, size = nodes.shape
        d_maps = [torch.zeros_like(part) for part in maps]
        d_nodes = torch.empty_like(nodes)
        for i in range(0, pairs, block):
            k = slice(i, i + block)
            d_after = grad[k, None]
            for t in range(steps - 1, -1, -1):
                merged, _, update, _ = maps[4 * t : 4 * t + 4]
                d_merged, d_shift, d_update, d_bias = d_maps[4 * t : 4 * t + 4]
                q = asked[t]
                x = states[t - 1][k] if t else nodes[k]
                y, e, m = asking[t][k], edges[t][k], mixed[t][k]
                g = torch.ops.aten.threshold_backward(d_after, states[t][k], 0).view(-1, size)
                d_update.addmm_(m.view(-1, size).t(), g)
                d_bias += g.sum(0)
                d_m = torch.mm(g, update.t()).view_as(m)
                d_e = torch.bmm(d_m, x.transpose(1, 2))
                d_x = torch.bmm(e.transpose(1, 2), d_m)
                d_e.sub_((d_e * e).sum(-1, keepdim=True)).mul_(e)
                d_x.baddbmm_(d_e.transpose(1, 2), y)
                d_y = torch.bmm(d_e, x).view(-1, size)
                d_merged.addmm_(x[:, :q].reshape(-1, size).t(), d_y)
                d_shift += d_y.sum(0)
                if q > 1:
                    d_x.view(-1, size).addmm_(d_y, merged.t())
                else:
                    d_x[:, 0].addmm_(d_y, merged.t())
                d_after = d_x
            d_nodes[k] = d_after
        return d_nodes, None, None, None, *d_maps
