"""Similarity nodes of all image-caption pairs, computed and differentiated block by block.

A pair (image b, caption c) has a global node s_0 = l2(W_g (v_b - t_c)^2 + b_g) and one node per word,
s_j = l2(W_l (c_j - t_j)^2 + b_l), where c_j is the word's attended context (SGRAF, arXiv 2101.01368,
Eqs. 2-5, with the LeakyReLU and the biases of the official code). The contexts of a batch of 128 pairs of
1024-d vectors would take gigabytes. They are never stored: images are taken in blocks that fit in the cache,
and the backward pass computes each block's contexts again from the attention weights, which are small.

Plan of the forward pass, for each block of images: raw scores by one product; LeakyReLU; each region's
scores divided by their norm over the words of a caption; softmax over regions; contexts by one batched
product, scaled to unit length; squared differences; the two linear maps; unit length. The backward pass goes
through the same steps in reverse. It keeps ``score``, ``share``, the nodes, and the norms ``scale``,
``extent`` and ``length``, none of which has D as a dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.models.encoders import EPS, l2

LEAK = 0.1
"""Slope of the LeakyReLU on raw attention scores."""


def pair_nodes(
    vectors: Tensor,
    regions: Tensor,
    captions: Tensor,
    words: Tensor,
    weight_g: Tensor,
    bias_g: Tensor,
    weight_l: Tensor,
    bias_l: Tensor,
    *,
    temperature: float,
    block: int,
) -> Tensor:
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
    keep = torch.is_grad_enabled()
    maps = (weight_g, bias_g, weight_l, bias_l)
    return _PairNodes.apply(vectors, regions, captions, words, *maps, temperature, block, keep)


def plain_nodes(
    vectors: Tensor,
    regions: Tensor,
    captions: Tensor,
    words: Tensor,
    weight_g: Tensor,
    bias_g: Tensor,
    weight_l: Tensor,
    bias_l: Tensor,
    *,
    temperature: float,
) -> Tensor:
    """Similarity nodes straight from the formulas: differentiable any number of times, in more memory.

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
        As :func:`pair_nodes` gives.
    """
    raw = F.leaky_relu(torch.einsum("...brd,...nwd->...brnw", regions, words), LEAK)
    share = torch.softmax(temperature * l2(raw), dim=-3)
    context = l2(torch.einsum("...brnw,...brd->...bnwd", share, regions))
    whole = (vectors[..., :, None, :] - captions[..., None, :, :]).square()  # (..., B, n, D)
    local = (context - words[..., None, :, :, :]).square()  # (..., B, n, w, D)
    nodes = (F.linear(whole, weight_g, bias_g)[..., None, :], F.linear(local, weight_l, bias_l))
    return l2(torch.cat(nodes, -2))


def differentiate(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Gradient of a function that can itself be differentiated.

    One input may be computed from another: views cut that path, which belongs to the graph around.

    Parameters
    ----------
    function : callable
        Takes the inputs as positional arguments and returns one Tensor.
    inputs : sequence of Tensor
        Where the gradient is taken.
    wanted : sequence of bool, as long as ``inputs``
        Inputs whose gradient is computed.
    grad : Tensor
        Gradient at the function's result, of its shape.

    Returns
    -------
    list of Tensor or None, as long as ``inputs``
        Gradients of the inputs' shapes; None where not ``wanted``.
    """
    views = [part.view_as(part) for part in inputs]
    asked = [view for view, want in zip(views, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(function(*views), asked, grad, create_graph=True))
    return [next(found) if want else None for want in wanted]


class _PairNodes(torch.autograd.Function):
    """See :func:`pair_nodes`."""

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        regions: Tensor,
        captions: Tensor,
        words: Tensor,
        weight_g: Tensor,
        bias_g: Tensor,
        weight_l: Tensor,
        bias_l: Tensor,
        temperature: float,
        block: int,
        keep: bool,
    ) -> Tensor:
        n_images, n_regions, dim = regions.shape
        n, w, _ = words.shape
        size = weight_l.shape[0]
        flat = words.reshape(n * w, dim)
        nodes = regions.new_empty(n_images, n, w + 1, size)
        block = min(block, n_images)
        rows = n_images if keep else block
        score = regions.new_empty(rows, n_regions, n, w)
        share = torch.empty_like(score)
        scale = regions.new_empty(rows, n_regions, n, 1)
        extent = regions.new_empty(rows, n * w, 1)
        length = regions.new_empty(rows, n, w + 1, 1)
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
            ctx.save_for_backward(
                vectors,
                regions,
                captions,
                words,
                weight_g,
                bias_g,
                weight_l,
                bias_l,
                nodes,
                score,
                share,
                scale,
                extent,
                length,
            )
        return nodes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate to images, captions and the two maps, recomputing the contexts.

        Each u = x / (|x| + eps) gives dx = (du - f u <du, u>) / (|x| + eps), f = (|x| + eps) / |x|.
        """
        with torch.autocast(grads[0].device.type, enabled=False):
            if torch.is_grad_enabled():  # create_graph: the gradient will be differentiated
                inputs, wanted = ctx.saved_tensors[:8], ctx.needs_input_grad[:8]
                plain = partial(plain_nodes, temperature=ctx.temperature)
                return *differentiate(plain, inputs, wanted, grads[0]), None, None, None
            return _PairNodes._backward(ctx, grads[0])

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        vectors, regions, captions, words, weight_g, _, weight_l, _, nodes, *saved = ctx.saved_tensors
        score, share, scale, extent, length = saved
        n_images, n_regions, dim = regions.shape
        n, w, _ = words.shape
        flat, twice_g, twice_l = words.reshape(n * w, dim), 2 * weight_g, 2 * weight_l
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
            weights = share[k].view(b, n_regions, -1)  # (b, R, n w)
            unit, gap, d_gap = buffers[:, :b].unbind()
            torch.bmm(weights.transpose(1, 2), part, out=unit).div_(extent[k])  # (b, n w, D)
            torch.sub(unit, flat, out=gap)
            torch.mm(dz_l, twice_l, out=d_gap.view(-1, dim)).mul_(gap.view(-1, dim))
            d_weight_l.addmm_(dz_l.t(), gap.square_().view(-1, dim))
            d_bias_l += dz_l.sum(0)
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
        d_words = d_flat.view_as(words)
        d_maps = (d_weight_g, d_bias_g, d_weight_l, d_bias_l)
        return d_vectors, d_regions, d_captions, d_words, *d_maps, None, None, None


def _project(squares: Tensor, weight: Tensor, bias: Tensor, out: Tensor, length: Tensor) -> None:
    """Write l2(W squares + b) into ``out`` and the lengths before it, plus eps, into ``length``."""
    z = torch.addmm(bias, squares.view(-1, squares.shape[-1]), weight.t()).view(out.shape)
    length.copy_(torch.linalg.vector_norm(z, dim=-1, keepdim=True).add_(EPS))
    torch.div(z, length, out=out)


def _factor(extended: Tensor) -> Tensor:
    """(|x| + eps) / |x| from |x| + eps; finite where x is zero, where it multiplies zero."""
    return extended / (extended - EPS).clamp_min(torch.finfo(extended.dtype).tiny)
