"""Similarity nodes of all image-caption pairs, computed and differentiated block by block.

A pair (image b, caption c) has one node per word, s_j = l2(W (c_j - t_j)^2 + bias), where c_j is the
word's attended context (SGRAF, arXiv 2101.01368, Eqs. 2-5 with the published code's LeakyReLU and bias).
The contexts of a batch of 128 pairs of 1024-d vectors would take gigabytes. They are never stored: images
are taken in blocks that fit in the cache, and the backward pass computes each block's contexts again from
the attention weights, which are small.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nclib.models.encoders import EPS

LEAK = 0.1
"""Slope of the LeakyReLU on raw attention scores."""


class PairNodes(torch.autograd.Function):
    """Nodes (B, n, w + 1, S) of all pairs of B images and n captions of w words.

    Node 0 of a pair is the given global node; nodes 1 to w are the words'.
    """

    @staticmethod
    def forward(
        ctx: Any,
        regions: Tensor,
        words: Tensor,
        first: Tensor,
        weight: Tensor,
        bias: Tensor,
        temperature: float,
        block: int,
    ) -> Tensor:
        """Compute the nodes.

        Parameters
        ----------
        regions : Tensor, (B, R, D)
            Unit regions.
        words : Tensor, (n, w, D)
            Unit words; zero where padded.
        first : Tensor, (B, n, S)
            Global node of each pair.
        weight, bias : Tensor, (S, D) and (S,)
            Linear map of squared differences.
        temperature : float
            Inverse temperature of the attention.
        block : int
            Images per block.
        """
        n_images, n_regions, dim = regions.shape
        n, w, _ = words.shape
        size = weight.shape[0]
        flat = words.reshape(n * w, dim)
        nodes = regions.new_empty(n_images, n, w + 1, size)
        nodes[:, :, 0] = first
        keep = any(ctx.needs_input_grad)
        block = min(block, n_images)
        rows = n_images if keep else block
        score = regions.new_empty(rows, n_regions, n, w)
        share = torch.empty_like(score)
        scale = regions.new_empty(rows, n_regions, n, 1)
        extent = regions.new_empty(rows, n * w, 1)
        length = regions.new_empty(rows, n * w, 1)
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
            z = torch.addmm(bias, context.view(-1, dim), weight.t()).view(b, n, w, size)
            norm = length[k].view(b, n, w, 1)
            torch.linalg.vector_norm(z, dim=-1, keepdim=True, out=norm)
            torch.div(z, norm.add_(EPS), out=nodes[i : i + b, :, 1:])
        ctx.temperature, ctx.block = temperature, block
        if keep:
            ctx.save_for_backward(regions, words, weight, nodes, score, share, scale, extent, length)
        return nodes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate to regions, words, global nodes and the linear map, recomputing the contexts.

        Every normalisation u = x / (|x| + eps) gives dx = (du - u <du, u> f) / (|x| + eps), f = (|x| + eps) / |x|.
        """
        (grad,) = grads
        regions, words, weight, nodes, score, share, scale, extent, length = ctx.saved_tensors
        n_images, n_regions, dim = regions.shape
        n, w, _ = words.shape
        size = weight.shape[0]
        flat, twice = words.reshape(n * w, dim), 2 * weight
        d_regions = torch.empty_like(regions)
        d_flat = torch.zeros_like(flat)
        d_weight = torch.zeros_like(weight)
        d_bias = weight.new_zeros(size)
        buffers = regions.new_empty(3, ctx.block, n * w, dim)
        for i in range(0, n_images, ctx.block):
            k = slice(i, i + ctx.block)
            part = regions[k]
            b = part.shape[0]
            unit, gap, d_gap = buffers[:, :b].unbind()
            weights = share[k].view(b, n_regions, -1)  # (b, R, n w)
            # the node's own normalisation
            out = nodes[k, :, 1:].reshape(b, n * w, size)
            g = grad[k, :, 1:].reshape(b, n * w, size)
            along = (g * out).sum(-1, keepdim=True).mul_(_factor(length[k]))
            dz = torch.addcmul(g, out, along, value=-1).div_(length[k]).view(-1, size)
            d_bias += dz.sum(0)
            # squared difference of the normalised context and the word
            torch.bmm(weights.transpose(1, 2), part, out=unit).div_(extent[k])  # (b, n w, D)
            torch.sub(unit, flat, out=gap)
            torch.mm(dz, twice, out=d_gap.view(-1, dim)).mul_(gap.view(-1, dim))
            d_weight.addmm_(dz.t(), gap.square_().view(-1, dim))
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
        return d_regions, d_flat.view_as(words), grad[:, :, 0], d_weight, d_bias, None, None


def _factor(extended: Tensor) -> Tensor:
    """(|x| + eps) / |x| from |x| + eps; finite where x is zero, where it multiplies zero."""
    return extended / (extended - EPS).clamp_min(torch.finfo(extended.dtype).tiny)
