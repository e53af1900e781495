r"""Linear: regularised canonical correlation analysis of mean regions and TF-IDF, in closed form.

One fit of all pairs, without a network, an epoch or a draw. Wrong pairs drawn at random scale the
cross-covariance of the views and leave its singular vectors, so that a linear contrastive loss, which
decomposes it, withstands them (Nakada et al., AISTATS 2023, arXiv:2302.06232). Its error grows as
:math:`1 / (\eta \sqrt n)` with the share :math:`\eta` of right pairs; a filter makes that
:math:`1 / \sqrt{\eta n}` (Pareek, Oh, Du, NeurIPS 2025, arXiv:2512.14230). The filter here scores each pair
by a fit that has not seen its image, weights it by a mixture whose wrong component is that of exchanged
pairs, and fits again. Where no pair seems wrong it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nclib.common.tokens import Tokens
from nclib.methods.base import ClosedForm, Loop, Options, Truth, option, register
from nclib.methods.parts.closed import LinearDivision, linear_division, weighted_words
from nclib.methods.parts.detector import detector_report
from nclib.models import CaptionEncoding, DualEncoder, ImageEncoding, Matcher
from nclib.models.encoders import l2, word_mask


@dataclass(frozen=True)
class LinearOptions(Options):
    """Options of the closed form; defaults chosen on the validation split of Flickr8K."""

    ridge: float = option(1.0, above=0, help="added to the variances, in units of their mean in each view")
    exponent: float = option(0.75, low=0, help="axes are scaled by their correlations to this power")
    words: int = option(4096, low=1, help="frequent words that count")
    filter: bool = option(True, help="weight the pairs by their probability of being matched, and fit again")
    rounds: int = option(3, low=1, help="rounds of the filter")


class LinearTowers(DualEncoder):
    """Two linear maps: of the mean region, and of TF-IDF; float64, without trained weights."""

    dtype = torch.float64
    image_map: Tensor
    image_shift: Tensor
    word_map: Tensor
    word_weights: Tensor
    text_shift: Tensor

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        k = self.feature_dim
        shapes = {"image_map": (k, k), "image_shift": (k,), "text_shift": (k,)}
        shapes |= {"word_map": (self.vocab_size, k), "word_weights": (self.vocab_size,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def encode_images(self, images: Tensor) -> ImageEncoding:
        """Map region features (B, R, feature_dim) to unit vectors (B, feature_dim)."""
        return ImageEncoding(l2(self.check_images(images).mean(1) @ self.image_map - self.image_shift))

    def encode_captions(self, tokens: Tokens) -> CaptionEncoding:
        """Map captions to unit vectors (C, feature_dim)."""
        ids = self.check_tokens(tokens).ids
        mask = word_mask(tokens.lengths, ids.shape[1], self.word_weights)
        times = ((ids[:, :, None] == ids[:, None, :]) * mask[:, None]).sum(-1).clamp_min(1)  # of each word
        weight = self.word_weights[ids] * mask * (1 + times.log()) / times
        length = (weight.square() * times).sum(1, keepdim=True).sqrt()  # of the row of words, each once
        t = torch.einsum("cw,cwk->ck", weight / length.clamp_min(1e-12), self.word_map[ids])
        return CaptionEncoding(l2(t - self.text_shift), tokens.lengths)


@register(
    "linear",
    summary="closed form: ridge CCA of mean regions and TF-IDF, refitted to what it keeps",
    paper="CCA: Hotelling, Biometrika 1936",
)
class Linear(ClosedForm):
    """Regularised CCA on pairs; ``options`` is a :class:`LinearOptions`."""

    Options = LinearOptions
    model: ClassVar[str] = "bow"  # which sees the mean region and a bag of words, too
    division: LinearDivision | None = None

    def prepare(self, network: Matcher) -> Matcher:
        return LinearTowers(feature_dim=network.feature_dim, vocab_size=network.vocab_size)

    def fit(self, loop: Loop) -> None:
        from nclib.common.cca import fit_cca

        o, pairs = self.options, loop.all_pairs()
        texts, weights = weighted_words(pairs, o.words)
        p_clean = None
        if o.filter:
            self.division = linear_division(pairs, texts, o.rounds)
            p_clean = self.division.p_clean
            loop.keep(score=self.division.scores, p_clean=p_clean)
        cca = fit_cca(pairs.images, texts, pairs.image_of, p_clean, ridge=o.ridge, exponent=o.exponent)
        k = cca.image_map.shape[1]  # fewer words than features leave the last axes empty
        towers: Any = loop.networks[0]
        towers.image_map[:, :k] = torch.from_numpy(cca.image_map)
        towers.image_shift[:k] = torch.from_numpy(cca.image_mean @ cca.image_map)
        towers.text_shift[:k] = torch.from_numpy(cca.text_mean @ cca.text_map)
        towers.word_weights.copy_(torch.from_numpy(weights))
        towers.word_map[torch.from_numpy(weights > 0), :k] = torch.from_numpy(cca.text_map)

    def diagnostics(self, truth: Truth) -> dict[str, float]:
        if self.division is None:
            return {}
        return {"share": self.division.share, **detector_report(self.division.p_clean, truth, 0.5)}
