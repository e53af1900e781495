"""VSE-infinity: a dual encoder that learns how to pool (Chen et al., CVPR 2021, arXiv 2011.04305)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, option
from nclib.models.encoders import BiGRU, l2, mask_of, sizes_on, word_mask, xavier_linear
from nclib.models.region_words import DualEncoder, RegionWordMatcher
from nclib.models.registry import register

UNKNOWN = 3
"""Token id of an unknown word."""

SHARES = (0.5, 0.6, 1)
"""Of the dropped tokens: below the first share the unknown word, below the second a random one, else none."""


def position_codes(n: int, width: int) -> Tensor:
    """Sine and cosine codes of the ranks 0 to n - 1.

    Parameters
    ----------
    n, width : int
        Number of ranks and of columns; ``width`` is even.

    Returns
    -------
    Tensor, float64, (n, width)
        Sines in the even columns.
    """
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1)


class GPO(nn.Module):
    """Generalised pooling operator: a learned weight for each rank of the sorted values (Sec. 3.2, Eqs. 2-4).

    A BiGRU of width ``hidden_dim`` turns position codes of width ``code_dim`` into weights.
    """

    temperature = 0.1

    def __init__(self, code_dim: int = 32, hidden_dim: int = 32) -> None:
        super().__init__()
        self.code_dim = code_dim
        self.gru = BiGRU(code_dim, hidden_dim)
        self.score = nn.Linear(hidden_dim, 1, bias=False)

    def coefficients(self, sizes: list[int]) -> Tensor:
        """Weights (len(sizes), max(sizes)) of the ranks of sets of these sizes; zero beyond a set."""
        longest = max(sizes)
        weight = self.score.weight
        codes = position_codes(longest, self.code_dim).to(weight, non_blocking=True)
        codes = codes[None].expand(len(sizes), -1, -1)
        states, _ = self.gru.read(codes, tuple(sizes))
        forward, backward = states.chunk(2, dim=-1)
        logits = self.score((forward + backward) / 2).squeeze(-1) / self.temperature
        absent = mask_of(sizes_on(tuple(sizes), weight.device), longest, weight) == 0
        return torch.softmax(logits.masked_fill(absent, -math.inf), dim=1)

    def forward(self, fragments: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Pool sets (B, n, D) with ``sizes`` valid rows each to (B, D)."""
        distinct = sorted(set(sizes))
        rows = torch.tensor([distinct.index(size) for size in sizes])
        rows = rows.to(fragments.device, non_blocking=True)
        weight = self.coefficients(distinct).index_select(0, rows)  # (B, longest)
        longest = distinct[-1]
        fragments = fragments[:, :longest]
        absent = word_mask(sizes, longest, fragments) == 0
        low = fragments.masked_fill(absent[..., None], -math.inf).sort(dim=1, descending=True).values
        ranked = low.masked_fill(absent[..., None], 0.0)  # padding sorts to the end and counts nothing
        return (weight[:, None] @ ranked).squeeze(1)


class ResidualRegionEncoder(nn.Module):
    """Linear map plus a two-layer network of every region: x = A f + b + MLP(f) (Sec. 4.1, "basic")."""

    def __init__(self, feature_dim: int, embed_dim: int) -> None:
        super().__init__()
        hidden = max(1, embed_dim // 2)
        self.fc = xavier_linear(feature_dim, embed_dim)
        self.first = nn.Linear(feature_dim, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, R, feature_dim) to (B, R, embed_dim); the batch norm is over all regions of the batch."""
        hidden = self.norm(self.first(images).flatten(0, 1)).view(*images.shape[:2], -1)
        return self.fc(images) + self.second(torch.relu(hidden))


def keep_rows(keep: Tensor, values: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Move the kept rows of each set to the front, in their order, and drop the rest.

    Parameters
    ----------
    keep : Tensor, bool, (B, n)
        Rows to keep, on the host.
    values : Tensor, (B, n, ...)
        On any device.

    Returns
    -------
    values : Tensor, (B, largest number kept, ...)
        Rows beyond a set's number are dropped ones: mask them.
    sizes : tuple of int, length B
    """
    order = torch.argsort((~keep).to(torch.uint8), dim=1, stable=True)
    order = order.to(values.device, non_blocking=True)
    shape = (*order.shape, *([1] * (values.ndim - 2)))
    moved = values.gather(1, order.view(shape).expand_as(values))
    sizes = tuple(keep.sum(1).tolist())
    return moved[:, : max(sizes)], sizes


def _not_all_dropped(keep: Tensor) -> Tensor:
    """Keep the first fragment of a set that would lose all; ``keep`` (B, n) of bool is changed in place."""
    keep[:, 0] |= ~keep.any(1)
    return keep


def change_words(
    tokens: Tokens, chance: Tensor, shares: tuple[float, float, float], mask_id: int, n_words: int
) -> Tokens:
    """Mask, replace and delete words whose ``chance`` is below the first, second and third of ``shares``.

    Parameters
    ----------
    tokens : Tokens
    chance, shares : Tensor, (C, W), and ascending tuple of float
    mask_id, n_words : int
        Id of the mask word; random words are drawn from ids below ``n_words``.

    Returns
    -------
    Tokens
        Captions of the same order, some shorter; one that would lose all words keeps the first.
    """
    masked, replaced, deleted = shares
    change = torch.where(chance < masked, mask_id, torch.randint(n_words, chance.shape))
    change = torch.where(chance < replaced, change, -1).to(tokens.ids.device, non_blocking=True)
    ids = torch.where(change < 0, tokens.ids, change)
    valid = torch.arange(ids.shape[1])[None] < torch.tensor(tokens.lengths)[:, None]
    return Tokens(*keep_rows(_not_all_dropped(valid & ~((chance >= replaced) & (chance < deleted))), ids))


def by_words(chance: Tensor, ids: Tensor, continues: Tensor | None) -> Tensor:
    """Give all pieces of a word the chance of its first piece.

    Parameters
    ----------
    chance, ids : Tensor, (C, W)
        On the host; token ids on any device.
    continues : Tensor, bool, (vocab_size,), or None
        Ids that go on with a word; None where every id is a word.

    Returns
    -------
    Tensor, (C, W)
    """
    if continues is None:
        return chance
    goes_on = continues[ids].cpu()  # what is deleted decides lengths, which the host must know
    place = torch.arange(chance.shape[1]).expand_as(chance)
    first = torch.where(goes_on, 0, place).cummax(1).values
    return chance.gather(1, first)


def thinned(tokens: Tokens, drop: float, text_encoder: Any, vocab_size: int) -> Tokens:
    """Replace or delete tokens at random; of BERT's own pieces whole words, and neither [CLS] nor [SEP].

    Parameters
    ----------
    tokens : Tokens
    drop : float, in (0, 1)
        Probability of a change: half of the tokens become the unknown word, or [MASK], a tenth a random one,
        and the rest vanish.
    text_encoder : Module
        ``mask_id`` and ``continues`` say what its pieces are, where it has them.
    vocab_size : int
    """
    chance = torch.rand(tokens.ids.shape) / drop
    mask_id = min(UNKNOWN, vocab_size - 1)
    if (own := getattr(text_encoder, "mask_id", None)) is not None:
        place, last = torch.arange(chance.shape[1]), torch.tensor(tokens.lengths)[:, None] - 1
        chance = by_words(chance, tokens.ids, text_encoder.continues)
        chance = torch.where((place > 0) & (place < last), chance, 1.0)
        mask_id = own
    return change_words(tokens, chance, SHARES, mask_id, vocab_size)


class ThinnedFragments(RegionWordMatcher):
    """A model with residual region encoder whose fragments are dropped at random in training.

    Each region with probability ``drop``; each token with probability ``drop``, of which half become the
    unknown word, a tenth a random word, and the rest vanish (the paper has a mask token where this uses the
    unknown word; on BERT's own pieces it is [MASK], and the pieces of a word share their fate).

    Parameters
    ----------
    drop : float
        Probability of dropping, in [0, 1).
    norm_over : {"all", "padded"}
        Regions that the batch norm of the region encoder counts in training: ``"all"``, the dropped ones too;
        or, as in the official code of VSE-infinity, those that are kept, and a row of zeros for each that an
        image has fewer than the others of its batch.
    **common
        Sizes and encoders; see :class:`~nclib.models.region_words.RegionWordMatcher`.
    """

    drop: float = option(0.2, low=0, below=1)
    norm_over: str = option("all", choices=("all", "padded"))

    draws_in_training = True

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.text_encoder.unit = False

    def region_encoder(self, width: int) -> nn.Module:
        return ResidualRegionEncoder(width, self.embed_dim)

    def kept_regions(self, images: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Encode region features as (B, R, D) and the numbers of regions that were kept.

        Rows beyond an image's number are dropped ones: mask them.
        """
        dropping = self.training and self.drop > 0
        if dropping and self.norm_over == "padded":
            rows, sizes = self._thinned_rows(self.cells(images))
            return self.image_encoder(rows * word_mask(sizes, rows.shape[1], rows)[..., None]), sizes
        regions = self.encode_regions(images)
        return self._thinned_rows(regions) if dropping else (regions, (regions.shape[1],) * len(regions))

    def _thinned_rows(self, rows: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        return keep_rows(_not_all_dropped(torch.rand(rows.shape[:2]) >= self.drop), rows)

    def kept_tokens(self, tokens: Tokens) -> Tokens:
        """Replace or delete tokens at random while training."""
        tokens = self.check_tokens(tokens)
        if not (self.training and self.drop):
            return tokens
        return thinned(tokens, self.drop, self.text_encoder, self.vocab_size)

    def kept_words(self, tokens: Tokens) -> tuple[Tensor, tuple[int, ...]]:
        """Encode captions as words (C, W, D), zero beyond their lengths, and the lengths that were kept."""
        tokens = self.kept_tokens(tokens)
        return self.encode_words(tokens)[0], tokens.lengths


class ThinnedMatcher(DualEncoder, ThinnedFragments):
    """A dual encoder whose fragments are dropped at random in training."""


# The official run on regions: 25 epochs, the first on all violations; the rate falls after the 15th.
PUBLISHED = {
    "warmup_epochs": 1,
    "epochs": 24,
    "decay_every": 14,
    "lr": 5e-4,
    "weight_decay": 1e-2,
    "model_options": {"norm_over": "padded"},
}


@register("vse_inf", summary="dual encoder with learned pooling (GPO); fast", paper="CVPR 2021")
class VSEInfinity(ThinnedMatcher):
    """Residual region encoder and BiGRU, each pooled by its own GPO; cosine.

    In training, fragments are dropped so that the pooling meets sets of many sizes.

    Parameters
    ----------
    **common
        Sizes, encoders and ``drop``; see :class:`ThinnedFragments`.
    """

    settings: ClassVar = {"f30k": PUBLISHED, "coco": PUBLISHED}

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.image_pool, self.text_pool = GPO(), GPO()

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Map region features (B, R, feature_dim) to unit vectors (B, D)."""
        return ImageEncoding(l2(self.image_pool(*self.kept_regions(images))))

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Map captions to unit vectors (C, D)."""
        words, lengths = self.kept_words(tokens)
        return CaptionEncoding(l2(self.text_pool(words, lengths)), lengths)
