"""PCME: images and captions as Gaussians, scored by a match probability (CVPR 2021, arXiv 2101.05068)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.omit import adamp  # noqa: F401  registers the optimiser
from baselines.omit.pvse import SENTENCES, ResidualPooling, SentenceEncoder, SetEncoding
from baselines.omit.word_embedding import WordEmbedding
from nclib.common.tokens import Tokens
from nclib.models.base import option
from nclib.models.encoders import word_mask, xavier_linear
from nclib.models.omit_matching import FragmentAttention
from nclib.models.region_words import PictureMatcher
from nclib.models.registry import register
from nclib.models.vse_inf import UNKNOWN, keep_rows

COMPARES = ("probability", "dot")
# The official run for MS-COCO: twice 30 epochs, a tenth of the rate in the second half.
PUBLISHED = {
    "loss": "own",
    "optimizer": "adamp",
    "warmup_epochs": 0,
    "epochs": 60,
    "decay": "cosine",
    "decay_every": 30,
    "model_options": {"sigma": 1.0, "slope": 15.0, "shift": 15.0, "caption_drop": 0.1},
}
FIXED_DRAWS = 2101
"""Seed of the draws used in evaluation. All samples share them, so that scores do not depend on the batch."""


def with_words_dropped(tokens: Tokens, drop: float, unknown: int) -> Tokens:
    """Make words unknown at random, then drop a share of the words; the first and the last token stay.

    Parameters
    ----------
    tokens : Tokens
    drop : float, in (0, 1)
        Probability of the first, and share, rounded down, of the second.
    unknown : int
        Id of the unknown word.
    """
    shape, place = tokens.ids.shape, torch.arange(tokens.ids.shape[1])
    last = torch.tensor(tokens.lengths)[:, None] - 1
    inner = (place > 0) & (place < last)  # (C, W)
    lost = (inner & (torch.rand(shape) < drop)).to(tokens.ids.device, non_blocking=True)
    ids = tokens.ids.masked_fill(lost, unknown)
    rank = torch.rand(shape).masked_fill(~inner, 1.0).argsort(1).argsort(1)
    left_out = inner & (rank < (drop * inner.sum(1, keepdim=True)).long())
    return Tokens(*keep_rows((place <= last) & ~left_out, ids))


@register("pcme", summary="Gaussian embeddings, match probability of samples", paper="CVPR 2021")
class PCME(PictureMatcher):
    """Each sample is a diagonal Gaussian; a pair's score is the mean match probability of sampled points.

    Means are residual-pooled unit vectors as in PVSE; log deviations come from an attention of their own. Two
    points match with probability sigmoid(2 (b - a d)), d their distance, a and b learned.

    Parameters
    ----------
    n_samples : int
        Points J drawn from each Gaussian.
    compare : {"probability", "dot"}
        Mean match probability (the default of the paper's tables), or the sum of all inner products.
    sigma, slope, shift : float
        Approximate deviation of the untrained Gaussians, first values of a and b; 1, 15 and 15 in the
        official code. There the probabilities of all untrained pairs are close to zero, from which only
        PCME's own loss recovers (-log p of the pairs of a batch and -log (1 - p) of the others); the defaults
        here give a ranking loss on probabilities something to rank.
    kl, sentence : float, {"last_token", "final"}
        Weight of the divergence in :meth:`own_loss`; which states of the BiGRUs are read, as in
        :class:`~baselines.omit.pvse.SentenceEncoder`.
    caption_drop : float
        In training: probability that a word becomes the unknown word, and share of the words, rounded down,
        that then vanish; 0.1 in the official code. Random erasing, there in a fifth of the pictures, has no
        counterpart here.
    word_vectors : str
        A ``.npy`` file that the word embeddings start from; see
        :class:`~nclib.models.region_words.RegionWordMatcher`.
    held_words : int
        First epochs in which embeddings from a file stay as they are; 30 of 60 in the official code.
    **common
        Sizes, and what pictures are read by; see :class:`~nclib.models.region_words.PictureMatcher`.
        ``embed_dim`` must be even.
    """

    n_samples: int = option(7, low=1)
    compare: str = option("probability", choices=COMPARES)
    sigma: float = option(0.01, above=0)
    slope: float = option(2.5, above=0)
    shift: float = option(3.0)
    kl: float = option(1e-5)
    sentence: str = option("last_token", choices=SENTENCES)
    caption_drop: float = option(0.0, low=0, below=1)
    word_vectors: str = option("", file=True)
    held_words: int = option(0, low=0)

    settings: ClassVar = {"f30k": PUBLISHED, "coco": PUBLISHED}
    draws_in_training = True

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        features, width, words = self.cell_dim, self.embed_dim, self.word_dim
        self.score_range = (0.0, 1.0) if self.compare == "probability" else (-torch.inf, torch.inf)
        self.image_fc = nn.Linear(features, width)
        self.image_pool = ResidualPooling(features, width)
        self.image_spread = FragmentAttention(features)
        self.image_spread_fc = xavier_linear(features, width)
        self.image_spread_global = xavier_linear(features, width)
        self.embedding = WordEmbedding(self.vocab_size, words, self.word_vectors, self.held_words)
        self.sentence_encoder = SentenceEncoder(words, width, self.sentence)
        self.text_pool = ResidualPooling(words, width)
        self.text_spread = FragmentAttention(words)
        self.text_spread_fc = xavier_linear(words, width)
        self.text_spread_sentence = SentenceEncoder(words, width, self.sentence)
        for layer in (self.image_spread_fc, self.text_spread_fc):
            nn.init.constant_(layer.bias, math.log(self.sigma))
        self.a = nn.Parameter(torch.tensor(self.slope))
        self.b = nn.Parameter(torch.tensor(self.shift))
        generator = torch.Generator("cpu").manual_seed(FIXED_DRAWS)
        self.draws: Tensor
        draws = torch.randn(2, self.n_samples, width, generator=generator, device="cpu")
        self.register_buffer("draws", draws, persistent=False)

    def encode_images(self, images: Tensor) -> SetEncoding:
        """Encode region features (B, R, feature_dim), or pictures, as means, log deviations and samples."""
        images = self.cells(images)
        whole = images.mean(1)
        mean, _ = self.image_pool(self.image_fc(whole), images)
        spread = self.image_spread_fc(self.image_spread(images).squeeze(1)) + self.image_spread_global(whole)
        return self.sample(F.normalize(mean.squeeze(1), dim=-1), spread, 0)

    def encode_captions(self, tokens: Tokens) -> SetEncoding:
        """Encode captions as means, log deviations and samples (C, J, D)."""
        tokens = self.check_tokens(tokens)
        if self.training and self.caption_drop:
            tokens = with_words_dropped(tokens, self.caption_drop, min(UNKNOWN, self.vocab_size - 1))
        words = self.embedding(tokens.ids[:, : max(tokens.lengths)])  # (C, W, word_dim)
        mask = word_mask(tokens.lengths, words.shape[1], words)
        mean, _ = self.text_pool(self.sentence_encoder(words, tokens.lengths), words, mask)
        spread = self.text_spread_fc(self.text_spread(words, mask).squeeze(1))
        spread = spread + self.text_spread_sentence(words, tokens.lengths)
        return self.sample(F.normalize(mean.squeeze(1), dim=-1), spread, 1)

    def sample(self, mean: Tensor, log_sigma: Tensor, side: int) -> SetEncoding:
        """Draw points mean + sigma * eps, (B, J, D); in evaluation the eps of each side is fixed."""
        shape = (len(mean), self.n_samples, mean.shape[1])
        if self.training:
            draws = torch.randn(shape).to(mean.device, mean.dtype, non_blocking=True)
        else:
            draws = self.draws[side].to(mean.dtype).expand(shape)
        points = mean[:, None] + log_sigma.exp()[:, None] * draws
        return SetEncoding(mean, points, log_sigma)

    def similarity(self, images: SetEncoding, captions: SetEncoding, *, logits: bool = False) -> Tensor:
        """Return match probabilities (B, C) or their logits; with ``compare="dot"`` sums of products."""
        x = images.members
        if self.compare == "dot":
            return x.sum(1) @ captions.members.sum(1).t()
        n_images, j, _ = x.shape
        size = max(1, self.memory_budget // (8 * n_images * j * j * x.element_size()))
        with torch.autocast(x.device.type, enabled=False):  # a difference of large products
            flat, columns = x.to(self.dtype).flatten(0, 1), []
            for part in captions.members.to(self.dtype).split(size):
                y = part.flatten(0, 1)
                square = flat.square().sum(1)[:, None] + y.square().sum(1) - 2 * flat @ y.t()  # (B J, n J)
                columns.append(self._scores(square.view(n_images, j, len(part), -1).transpose(1, 2), logits))
            return torch.cat(columns, 1)

    def _scores(self, square: Tensor, logits: bool) -> Tensor:
        """Scores from squared distances (..., J, J)."""
        distance = (square.clamp_min(0) + 1e-6).sqrt()
        t = 2 * (self.b - self.a * distance).flatten(-2)
        if logits:  # log p - log (1 - p), exact where p rounds to 0 or 1
            return torch.logsumexp(F.logsigmoid(t), -1) - torch.logsumexp(F.logsigmoid(-t), -1)
        return torch.sigmoid(t).mean(-1)

    def paired_similarity(
        self, images: SetEncoding, captions: SetEncoding, *, logits: bool = False
    ) -> Tensor:
        """Return the score of image i and caption i, (n,)."""
        self.check_pairs(images, captions)
        x, y = images.members.to(self.dtype), captions.members.to(self.dtype)
        if self.compare == "dot":
            return (x.sum(1) * y.sum(1)).sum(1)
        return self._scores((x[:, :, None] - y[:, None]).square().sum(-1), logits)

    def own_loss(self, images: SetEncoding, captions: SetEncoding) -> dict[str, Tensor]:
        """Return the soft contrastive loss and the weighted divergence from the standard Gaussian.

        Contrastive: -log p of the pairs of the batch and -log (1 - p) of all others, both directions, summed;
        without meaning for ``compare="dot"``. As in the official code, the mean of the drawn points replaces
        the mean in the divergence, and log sigma the log *variance*.
        """
        logits = self.similarity(images, captions, logits=True)
        sign = 1 - 2 * torch.eye(len(logits), dtype=logits.dtype, device=logits.device)
        return {
            "contrastive": 2 * F.softplus(sign * logits).sum(),
            "kl": self.kl * (_divergence(images) + _divergence(captions)),
        }


def _divergence(encoding: SetEncoding) -> Tensor:
    s = encoding.detail
    return -0.5 * (1 + s - encoding.members.mean(1).square() - s.exp()).sum()
