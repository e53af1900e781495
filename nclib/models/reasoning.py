"""Graph reasoning over the nodes of every pair, computed and differentiated block by block.

One step is X <- ReLU(softmax(Q K^T) X A_u + b_u) with Q = X A_q + b_q and K = X A_k + b_k (SGRAF,
arXiv 2101.01368, Eqs. 6-8). The logits <Q_i, K_j> are x_i M x_j + r x_j, with M = A_q A_k^T and r = A_k b_q,
up to terms that are equal for all keys j, which the softmax ignores: one map instead of two. The last step is
needed at node 0 alone.

Plan for each block of pairs and each step: queries y = x M + r, edges y x^T, softmax, mixture, update, ReLU.
The backward pass keeps y, edges, mixtures and states of all steps and goes through them in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nclib.models.alignment import differentiate


def softmax_(logits: Tensor) -> Tensor:
    """Overwrite ``logits`` with their softmax along the last axis.

    On a CPU, torch's own softmax leaves the vector units idle when the axis is shorter than 16: five times
    slower than these four calls.

    Parameters
    ----------
    logits : Tensor, (..., N)
        Changed in place.

    Returns
    -------
    Tensor, (..., N)
        ``logits``.
    """
    if logits.device.type != "cpu" or logits.shape[-1] >= 16:
        return torch.softmax(logits, -1, out=logits)
    logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    return logits.div_(logits.sum(-1, keepdim=True))


def reason_over_pairs(nodes: Tensor, absent: Tensor | None, maps: Sequence[Tensor], *, block: int) -> Tensor:
    """Run the steps on all pairs.

    Parameters
    ----------
    nodes : Tensor, (P, N, S)
        Similarity nodes of each pair.
    absent : Tensor, (P, 1, N), optional
        0 at nodes and -inf at padding.
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


def plain_reasoning(nodes: Tensor, absent: Tensor | None, *maps: Tensor) -> Tensor:
    """Node 0 after all steps, straight from the formulas: differentiable any number of times.

    Parameters
    ----------
    nodes : Tensor, (P, N, S)
        Similarity nodes of each pair.
    absent : Tensor, (P, 1, N), optional
        0 at nodes and -inf at padding.
    *maps : Tensor
        For each step M (S, S), r (S), A_u (S, S) as (in, out), b_u (S).

    Returns
    -------
    Tensor, (P, S)
        As :func:`reason_over_pairs` gives.
    """
    last = len(maps) - 4
    for t in range(0, len(maps), 4):
        merged, shift, update, bias = maps[t : t + 4]
        asking = nodes[:, :1] if t == last else nodes
        edges = (asking @ merged + shift) @ nodes.transpose(1, 2)
        edges = torch.softmax(edges if absent is None else edges + absent, -1)
        nodes = torch.relu(edges @ nodes @ update + bias)
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

                first, *rest = differentiate(plain, saved[: len(wanted)], wanted, grads[0])
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
