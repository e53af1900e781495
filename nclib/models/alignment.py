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
        rows = n_images if keep else min(block, n_images)
        score = regions.new_empty(rows, n_regions, n, w)
        share = torch.empty_like(score)
        scale = regions.new_empty(rows, n_regions, n, 1)
        length = regions.new_empty(rows, n * w, 1)
        weight_t = weight.t()
        for i in range(0, n_images, block):
            part = regions[i : i + block]  # (b, R, D)
            b = part.shape[0]
            k = slice(i, i + b) if keep else slice(0, b)
            raw = score[k]
            torch.mm(part.reshape(-1, dim), flat.t(), out=raw.view(-1, n * w))
            torch.nn.functional.leaky_relu_(raw, LEAK)
            torch.linalg.vector_norm(raw, dim=-1, keepdim=True, out=scale[k])
            raw.div_(scale[k] + EPS)
            torch.softmax(raw * temperature, dim=1, out=share[k])
            context = torch.bmm(share[k].view(b, n_regions, -1).transpose(1, 2), part)  # (b, n w, D)
            context.div_(torch.linalg.vector_norm(context, dim=-1, keepdim=True).add_(EPS))
            context.sub_(flat).square_()
            z = torch.addmm(bias, context.view(-1, dim), weight_t).view(b, n * w, size)
            torch.linalg.vector_norm(z, dim=-1, keepdim=True, out=length[k])
            torch.div(z.view(b, n, w, size), (length[k] + EPS).view(b, n, w, 1), out=nodes[i : i + b, :, 1:])
        ctx.temperature, ctx.block = temperature, block
        if keep:
            ctx.save_for_backward(regions, words, weight, nodes, score, share, scale, length)
        return nodes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate to regions, words, global nodes and the linear map, recomputing the contexts."""
        (grad,) = grads
        regions, words, weight, nodes, score, share, scale, length = ctx.saved_tensors
        n_images, n_regions, dim = regions.shape
        n, w, _ = words.shape
        size = weight.shape[0]
        tiny = torch.finfo(regions.dtype).tiny
        flat = words.reshape(n * w, dim)
        d_regions = torch.empty_like(regions)
        d_flat = torch.zeros_like(flat)
        d_weight = torch.zeros_like(weight)
        d_bias = weight.new_zeros(size)
        for i in range(0, n_images, ctx.block):
            k = slice(i, i + ctx.block)
            part, weights = regions[k], share[k]
            b = part.shape[0]
            weights = weights.view(b, n_regions, -1)  # (b, R, n w)
            # l2 of a node: u = z / (|z| + eps), dz = (du - u <du, u> (|z| + eps) / |z|) / (|z| + eps)
            out = nodes[k, :, 1:].reshape(b, n * w, size)
            g = grad[k, :, 1:].reshape(b, n * w, size)
            norm = length[k]
            along = (g * out).sum(-1, keepdim=True).mul_((norm + EPS) / norm.clamp_min(tiny))
            dz = torch.addcmul(g, out, along, value=-1).div_(norm + EPS).view(-1, size)
            d_bias += dz.sum(0)
            context = torch.bmm(weights.transpose(1, 2), part)  # (b, n w, D)
            norm = torch.linalg.vector_norm(context, dim=-1, keepdim=True)
            gap = torch.div(context, norm + EPS).sub_(flat)
            d_gap = torch.mm(dz, weight).view_as(context).mul_(gap).mul_(2)
            d_weight.addmm_(dz.t(), gap.square_().view(-1, dim))
            d_flat -= d_gap.sum(0)
            along = (d_gap * context).sum(-1, keepdim=True).div_(norm.clamp_min(tiny) * (norm + EPS) ** 2)
            d_context = d_gap.div_(norm + EPS).sub_(context.mul_(along))
            d_part = torch.bmm(weights, d_context)  # (b, R, D)
            d_share = torch.bmm(part, d_context.transpose(1, 2))  # (b, R, n w)
            # softmax over regions, then norm over the words of a caption, then LeakyReLU
            d_share.sub_((d_share * weights).sum(1, keepdim=True)).mul_(weights).mul_(ctx.temperature)
            d_score = d_share.view(b, n_regions, n, w)
            value, norm = score[k], scale[k]
            along = (d_score * value).sum(-1, keepdim=True).mul_((norm + EPS) / norm.clamp_min(tiny))
            d_score = torch.addcmul(d_score, value, along, value=-1).div_(norm + EPS)
            d_score = torch.where(value > 0, d_score, d_score * LEAK).view(-1, n * w)
            d_part.view(-1, dim).addmm_(d_score, flat)
            d_flat.addmm_(d_score.t(), part.reshape(-1, dim))
            d_regions[k] = d_part
        return d_regions, d_flat.view_as(words), grad[:, :, 0], d_weight, d_bias, None, None
