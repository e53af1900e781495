"""The two towers of CLIP (ICML 2021, arXiv 2103.00020): a transformer over image patches and one over text.

Parts are named as in the files of OpenAI and open_clip; :mod:`nclib.models.clip_file` reads these.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class QuickGELU(nn.Module):
    """``x * sigmoid(1.702 x)``: what OpenAI's weights were trained with."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return x * torch.sigmoid(1.702 * x)


GELUS: dict[str, type[nn.Module]] = {"exact": nn.GELU, "quick": QuickGELU}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the transformer of a tower.

    Parameters
    ----------
    width, hidden, layers, heads : int
        Width of a state and of the networks' hidden layers, number of layers, heads of the attention.
    gelu : {"exact", "quick"}
        Activation of the networks.
    """

    width: int
    hidden: int
    layers: int
    heads: int
    gelu: str = "exact"


class Attention(nn.Module):
    """Self-attention whose three input maps lie in one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * width, width) * width**-0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """Map (B, P, H) to (B, P, H); ``causal``: no position looks at later ones."""
        mapped = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = mapped.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, h, P, H / h) each
        if torch.is_grad_enabled():  # written out: the fused kernels cannot be differentiated twice
            scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])  # (B, h, P, P)
            if causal:
                later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(later, -math.inf)
            y = torch.softmax(scores, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        mixed: Tensor = self.out_proj(y.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention and a two-layer network, each added to its input, which they take normalised."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, sizes.heads)
        self.mlp = nn.Sequential(
            OrderedDict(
                c_fc=nn.Linear(width, sizes.hidden),
                gelu=GELUS[sizes.gelu](),
                c_proj=nn.Linear(sizes.hidden, width),
            )
        )

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """Map (B, P, H) to (B, P, H)."""
        x = x + self.attn(self.ln_1(x), causal)
        y: Tensor = x + self.mlp(self.ln_2(x))
        return y


class Transformer(nn.Module):
    """The blocks of a tower."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))

    def forward(self, x: Tensor, *, causal: bool = False) -> Tensor:
        """Map (B, P, H) to (B, P, H)."""
        for block in self.resblocks:
            x = block(x, causal)
        return x


def _normal(*shape: int, std: float) -> nn.Parameter:
    return nn.Parameter(std * torch.randn(*shape))


class ImageTower(nn.Module):
    """Patches of a square picture, a class token before them, and a transformer.

    Parameters
    ----------
    sizes : Sizes
        Of the transformer.
    patch, grid : int
        Pixels of a patch and patches of a picture, in each direction.
    out : int
        Width of an embedding; 0 for a tower that gives states only.
    """

    def __init__(self, sizes: Sizes, *, patch: int, grid: int, out: int = 0) -> None:
        super().__init__()
        width = sizes.width
        self.size, self.width = patch * grid, width
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = _normal(width, std=width**-0.5)
        self.positional_embedding = _normal(grid**2 + 1, width, std=width**-0.5)
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(sizes)
        self.proj = _normal(width, out, std=width**-0.5) if out else None

    def forward(self, pixels: Tensor) -> Tensor:
        """States of the class token and the patches, row by row: (B, 3, size, size) to (B, 1 + grid^2, H)."""
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)  # (B, grid^2, H)
        first = self.class_embedding.expand(len(patches), 1, -1)
        x = self.ln_pre(torch.cat([first, patches], 1) + self.positional_embedding)
        states: Tensor = self.ln_post(self.transformer(x))
        return states

    def embed(self, pixels: Tensor) -> Tensor:
        """Map pictures (B, 3, size, size) to embeddings (B, out), not normalised."""
        states = self(pixels)[:, 0]
        return states if self.proj is None else states @ self.proj


class TextTower(nn.Module):
    """A transformer in which a piece of text sees itself and what comes before it.

    What follows the last piece of a caption therefore changes nothing, and needs no mask.

    Parameters
    ----------
    sizes : Sizes
        Of the transformer.
    vocab_size, longest : int
        Number of pieces known, pieces of the longest text.
    out : int
        Width of an embedding; 0 for a tower that gives states only.
    """

    def __init__(self, sizes: Sizes, *, vocab_size: int, longest: int, out: int = 0) -> None:
        super().__init__()
        width = sizes.width
        self.longest, self.width, self.vocab_size = longest, width, vocab_size
        self.token_embedding = nn.Embedding(vocab_size, width)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.positional_embedding = _normal(longest, width, std=0.01)
        self.transformer = Transformer(sizes)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = _normal(width, out, std=width**-0.5) if out else None

    def forward(self, ids: Tensor) -> Tensor:
        """States (C, P, H) of pieces (C, P), P at most ``longest``."""
        x = self.token_embedding(ids) + self.positional_embedding[: ids.shape[1]]
        states: Tensor = self.ln_final(self.transformer(x, causal=True))
        return states

    def project(self, states: Tensor) -> Tensor:
        """Map states (C, H) of the last pieces to embeddings (C, out), not normalised."""
        return states if self.text_projection is None else states @ self.text_projection
