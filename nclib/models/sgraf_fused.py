"""Local similarity nodes of SGR and SAF in one launch on a GPU, by kernels of Triton, when asked for.

:func:`nclib.ot.fused` asks for them. **Not measured on a GPU yet**: values and gradients equal those of the
plain path in Triton's interpreter on a CPU, and the kernels were compiled ahead of time.

The plain path of :mod:`nclib.models.sgraf_nodes` moves the contexts of a block of images, (B, n w, D),
through memory at every operation, nine times forward and some 24 times backward. Here they stay in registers;
a backward pass needs the attention, which is kept for it. At the papers' size (B = n = 128, R = 36, w = 12, D
= 1,024, S = 256) forward must move 0.23 GB, nearly all of it the nodes that it writes, for 132 GFLOP, 103 of
them the linear map: arithmetic decides. The backward pass leaves its two products with the map to the library
and does the rest in one launch: 4 GB where the plain path moves 19, and 2 GB of atomic additions in the
cache. Their order is not fixed: two runs may differ in the last bits, as elsewhere on a GPU.

SCAN has no kernel of its own: its plain path stores no contexts, and moves about 0.4 GB for 15 GFLOP.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nclib.ot.backends.fused import asked, launch, tile

#: Words of a program, if its captions are short; regions, words and numbers of a node at most. With more
#: words, or longer blocks, registers spill.
TOGETHER = 32
MOST_REGIONS, MOST_WORDS, MOST_NUMBERS = 64, 128, 256
#: Numbers of a vector that a program holds at a time; a product of tiles needs sides of 16 at least.
BLOCK, LEAST = 16, 16


def takes(regions: Tensor, words: int, size: int) -> bool:
    """Return whether the kernels were asked for and can take these regions, words, and numbers of a node."""
    return (
        asked(regions)
        and regions.shape[1] <= MOST_REGIONS
        and 0 < words <= MOST_WORDS
        and size <= MOST_NUMBERS
    )


def local_nodes(
    regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, temperature: float, nodes: Tensor,
    kept: tuple[Tensor, ...] | None,
) -> None:  # fmt: skip
    """Write the local nodes of all pairs.

    Parameters
    ----------
    regions, words : Tensor, (B, R, D) and (n, w, D)
    weight, bias : Tensor, (S, D) and (S,)
    temperature : float
    nodes : Tensor, (B, n, w + 1, S)
        Where they go, behind the global node of each pair.
    kept : tuple of Tensor, optional
        Where scores, shares, scales, extents and lengths go, which the backward pass needs.
    """
    from nclib.models import _triton

    count, n_regions, dim = regions.shape
    n, w, _ = words.shape
    how = settings(n_regions, n, w)
    given = [x.contiguous() for x in (regions, words, regions @ regions.mT, weight, bias)]
    found = (nodes, *(kept or (nodes,) * 5))
    sizes = (n_regions, n, w, dim, weight.shape[0], temperature)
    across = max(LEAST, tile(weight.shape[0]))
    programs = count * -(-n // how["P"])
    launch(_triton.nodes, programs, *given, *found, *sizes, KEPT=kept is not None, V=across, **how)


def contexts_back(
    regions: Tensor,
    words: Tensor,
    share: Tensor,
    extent: Tensor,
    pull: Tensor,
    d_regions: Tensor,
    d_words: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return squared gaps (B, n w, D) and the gradient of the shares (B, R, n w); add to the others.

    Parameters
    ----------
    regions, words : Tensor, (B, R, D) and (n, w, D)
    share, extent : Tensor, (B, R, n, w) and (B, n w, 1)
    pull : Tensor, (B, n w, D)
        Twice the gradient for the squared gaps, so that it gives, times the gaps, the gradient for the gaps.
    d_regions, d_words : Tensor, (B, R, D) and (n w, D)
        What the gradients through contexts and gaps are added to.
    """
    from nclib.models import _triton

    count, n_regions, dim = regions.shape
    n, w, _ = words.shape
    how = settings(n_regions, n, w)
    squares, d_share = torch.empty_like(pull), regions.new_empty(count, n_regions, n * w)
    given = [x.contiguous() for x in (regions, words, share, extent, pull)]
    found = (squares, d_share, d_regions, d_words)
    programs = count * -(-n // how["P"])
    launch(_triton.contexts_back, programs, *given, *found, n_regions, n, w, dim, **how)
    return squares, d_share


def settings(regions: int, captions: int, words: int) -> dict[str, Any]:
    """Return tile, warps and arithmetic of a program."""
    wide = tile(words)
    together = max(1, LEAST // wide, min(TOGETHER // wide, tile(captions)))
    # TF32 where torch may use it; else three products of TF32, which round as float32 does
    precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    sides = {"P": together, "W": wide, "K": max(LEAST, tile(regions)), "B": BLOCK}
    return {"PRECISION": precision, "num_warps": 8, "num_stages": 2, **sides}
