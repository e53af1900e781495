"""OMIT: image-text matching by optimal partial transport (Pan et al., arXiv 2603.14349), and its comparisons.

The score of a pair is the similarity that an entropic transport plan between regions and words collects.
Partial matching adds one global vector to each side, a dustbin; mass moved to or from it does not count. The
official code has transport with uniform weights only; dustbins and the other rows of Tables 3 to 5 follow
the paper's text. Choices that the paper leaves open are options, described in the docstrings.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from nclib.common.tokens import Tokens
from nclib.models.base import CaptionEncoding, ImageEncoding, fragments, option, used_with
from nclib.models.compiled import alike, call, comparing
from nclib.models.encoders import EPS, l2, word_mask, xavier_linear
from nclib.models.grouping import GROUP_BYTES, Group, Grouped, accelerated, group_captions
from nclib.models.omit_matching import (
    MARGINALS,
    MATCHINGS,
    FragmentAttention,
    OMITCaptions,
    OMITImages,
    Side,
    add_dustbins,
    attention,
    attention_scores,
    compare,
    mean_scale,
    pooled,
)
from nclib.models.omit_text import SHORTEST, TEXTS, augment, text_encoder
from nclib.models.pretrained import start_from
from nclib.models.region_words import TextMatcher
from nclib.models.registry import register
from nclib.models.vse_inf import ResidualRegionEncoder
from nclib.ot.pairs import transport_plans, transport_scores
from nclib.ot.small import LOOPS

MASK_RATIO = {"region": 0.4, "grid": 0.2}
"""Share of the fragments of an image that training leaves out (Sec. 4.1)."""

PUBLISHED = {
    "batch_size": 384,
    "warmup_epochs": 1,
    "epochs": 14,
    "lr": 5e-4,
    "decay_every": 9,
    "margin": 0.05,
    "weight_decay": 5e-4,
}
"""The paper's schedule for region features; grid features use batches of 128."""

ATTENTION_TAU = 0.1
"""Temperature of cross attention in the paper."""

BYTES = {"transport": 3, "attention": 8}
"""What training keeps of a comparison, in multiples of its cosines."""

GROUP_WORDS, SLAB_ENTRIES = 1024, 1 << 20
"""Words of captions, and cosines, that are scored at a time without gradients."""


IMAGE_ENCODERS = {"mlp": ResidualRegionEncoder, "linear": xavier_linear}


@register("omit", summary="optimal partial transport of regions to words", paper="arXiv 2603.14349")
class OMIT(TextMatcher):
    """Optimal partial transport between regions and words, or one of its comparisons.

    In training a random part of the regions is left out, and words of captions are masked, replaced and
    deleted at random.

    Parameters
    ----------
    matching : str
        ``"partial_ot"`` (the paper's method); ``"ot"`` without dustbins; ``"full"``: dustbins count as
        ordinary fragments; ``"prompt"``: dustbins are two learned vectors; ``"cam"``, ``"partial_cam"``:
        cross attention of words over regions, without and with a dustbin; ``"vse"``: cosine of the mean
        vectors; ``"pem"``: negative Wasserstein-2 distance of two diagonal Gaussians (Tables 3 and 4).
    marginals : {"uni", "intra", "inter", "norm"}
        Weights of the fragments in transport: uniform, by the cosine with the own or the other side's global
        vector, or by their length before normalisation (Table 5).
    lam, iterations : float, int
        Weight lambda of the entropy (Eq. 2); row and column updates T of the scaling loop (Alg. A1).
    sinkhorn : {"released", "log"}
        The loop of the official code, which adds 1e-6 to every sum and thereby drops regions far from all
        words, or exact scaling. Scores differ by up to 0.1 at the paper's lambda: do not mix them.
    tau, attention_tau : float
        Temperatures of ``marginals="intra"`` and ``"inter"`` (1 in the paper) and of cross attention (0.1).
    features, mask_ratio : {"region", "grid"}, float
        Kind of the fragments, ``"grid"`` for pictures; decides the share left out in training, 0.4 or 0.2.
        Another share, in [0, 1).
    image_encoder : {"mlp", "linear"}
        Linear map plus a two-layer network (the paper's), or a linear map; on CLIP's patches one of CLIP's
        own width starts from CLIP's projection.
    image_global : {"mean", "first"}
        An image's global vector: the mean of its fragments, or its first fragment (the class token of a
        vision transformer), which is then left out of the local ones.
    text : {"bigru", "bert", "clip"}
        Text encoder: a bidirectional GRU, whose captions have the mean of their words as global vector; a
        pretrained BERT, whose first token is the global vector and not a word; or CLIP's text tower, whose
        global vector is the end of the text and whose words are the tokens between start and end.
    augment_captions : bool
        Change captions at random in training.
    **common
        Sizes, and what reads captions and pictures; see :class:`~nclib.models.region_words.TextMatcher` and
        :class:`~nclib.models.region_words.PictureMatcher`. Fragments are detector regions or the cells of a
        feature grid, as given, or made of pictures.

    Notes
    -----
    The plan is P = argmin <P, 1 - s> - lambda H(P) with marginals p and q (Eqs. 2 and 4), approximated by T
    passes; the similarity is the sum of P_ij s_ij over local i and j (Eq. 5), not divided by the mass that
    stays local.

    Examples
    --------
    >>> import torch
    >>> from nclib.models import Tokens, build
    >>> model = build("omit", feature_dim=8, vocab_size=20, embed_dim=16, word_dim=8).eval()
    >>> images = model.encode_images(torch.rand(2, 6, 8))
    >>> captions = model.encode_captions(Tokens(torch.tensor([[1, 5, 7, 2], [1, 9, 2, 0]]), (4, 3)))
    >>> model.similarity(images, captions).shape
    torch.Size([2, 2])
    >>> model.alignments(images, captions).shape  # one dustbin beside six regions, one beside four words
    torch.Size([2, 2, 7, 5])
    """

    matching: str = option("partial_ot", choices=MATCHINGS)
    marginals: str = option("uni", choices=MARGINALS)
    lam: float = option(0.02, above=0)
    iterations: int = option(3, low=1)
    sinkhorn: str = option("released", choices=LOOPS)
    tau: float = option(1.0, above=0)
    attention_tau: float = option(ATTENTION_TAU, above=0)
    features: str = option("region", choices=MASK_RATIO)
    mask_ratio: float = option(None, kind=float, low=0, below=1)
    image_encoder: str = option("mlp", choices=IMAGE_ENCODERS)
    image_global: str = option("mean", choices=("mean", "first"))
    augment_captions: bool = option(True)

    # Section 4.1: one epoch on all violations, then hardest negatives; ten epochs at the first rate in all.
    settings: ClassVar = {"quick": {"margin": 0.05}, "f30k": PUBLISHED, "coco": PUBLISHED}
    draws_in_training = True

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        matching, kind, width = self.matching, MATCHINGS[self.matching], self.embed_dim
        if self.mask_ratio is None:
            self.mask_ratio = MASK_RATIO[self.features if self.image == "regions" else "grid"]
        self.captions_are = TEXTS[self.text]
        self.augments = self.augment_captions and self.captions_are.augmented
        self.fragment_encoder = IMAGE_ENCODERS[self.image_encoder](self.cell_dim, width)
        if self.image_encoder == "linear" and self.pixels is not None and self.pixels.projection is not None:
            start_from(self.fragment_encoder, self.pixels.projection)
        # options without effect are refused
        used_with("tau", self.tau, "marginals", self.marginals, "intra", "inter", usual=1.0)
        attending = [name for name, kind in MATCHINGS.items() if kind.family == "attention"]
        used_with("attention_tau", self.attention_tau, "matching", matching, *attending, usual=ATTENTION_TAU)
        sizes = (self.vocab_size, width, self.word_dim)
        vectors = self.word_vectors
        self.text_encoder = text_encoder(self.text, *sizes, word_vectors=vectors, **self.text_options)
        self.score_range = (-2 * (1 + np.e**2) ** 0.5, 0.0) if matching == "pem" else (-1.0, 1.0)
        if matching == "pem":
            self.image_pool, self.text_pool = FragmentAttention(width), FragmentAttention(width)
        if kind.dustbin == "prompt":
            self.image_prompt, self.text_prompt = (
                nn.Parameter(torch.randn(width) * width**-0.5) for _ in range(2)
            )

    # -- encoding -------------------------------------------------------------------------------------------

    def encode_images(self, images: Tensor) -> OMITImages:
        """Encode fragments (B, K, feature_dim) as unit vectors (B, K, D) with a unit global vector (B, D)."""
        images = self.cells(images)
        lead = int(self.image_global == "first")
        if images.shape[1] <= lead:
            raise ValueError("images have one fragment, but image_global='first' takes it as the global one")
        if self.training and self.mask_ratio:
            images = self._leave_out(images, lead)
        x = self.fragment_encoder(images)
        unit = l2(x)
        norms = torch.linalg.vector_norm(x, dim=-1)[:, lead:]
        regions = unit[:, lead:]
        vectors = unit[:, 0] if lead else l2(regions.mean(1))
        spread = l2(vectors + pooled(self.image_pool, regions)) if self.matching == "pem" else None
        return OMITImages(vectors, regions, norms, spread)

    def _leave_out(self, images: Tensor, lead: int) -> Tensor:
        """Keep a random part of the fragments of every image, in random order, and the first ``lead``."""
        n = images.shape[1] - lead
        kept = max(1, int(n * (1 - self.mask_ratio) + 1e-9))
        order = torch.rand(images.shape[0], n).argsort(1)[:, :kept] + lead
        order = torch.cat([torch.arange(lead).expand(images.shape[0], lead), order], 1)
        order = order.to(images.device, non_blocking=True)
        return images.gather(1, order[..., None].expand(-1, -1, images.shape[2]))

    def encode_captions(self, tokens: Tokens) -> OMITCaptions:
        """Encode captions as unit words (C, W, D), zero at padding, with a unit global vector (C, D)."""
        tokens = self.check_tokens(tokens)
        lead, tail = self.captions_are.lead, self.captions_are.tail
        if min(tokens.lengths) <= lead + tail:
            raise ValueError(
                f"tokens has a caption of {min(tokens.lengths)} tokens; {lead + tail} of them are not words"
            )
        if self.training and self.augments:
            shortest = 1 if lead else SHORTEST
            known = getattr(self.text_encoder, "continues", None)
            ids = {"mask_id": self.vocab_size, "n_words": self.vocab_size}
            tokens = augment(tokens, **ids, shortest=shortest, continues=known)
        x, whole = self.text_encoder(tokens)
        lengths = tuple(n - lead - tail for n in tokens.lengths)
        x = x[:, lead : x.shape[1] - tail]
        mask = word_mask(lengths, x.shape[1], x)
        absent = 1 - mask  # the length of a zero row has no second derivative
        norms = torch.linalg.vector_norm(x + absent[..., None], dim=-1) * mask
        words = x * mask[..., None] / (norms + absent + EPS)[..., None]
        vectors = l2(whole) if lead else l2(words.sum(1) / mask.sum(1, keepdim=True))
        spread = l2(vectors + pooled(self.text_pool, words, mask)) if self.matching == "pem" else None
        return OMITCaptions(vectors, lengths, words, norms, spread)

    def _sides(
        self, images: ImageEncoding, captions: CaptionEncoding, *, lean: bool = False
    ) -> tuple[Side, Side]:
        regions, words = fragments(images, captions)
        words = words.to(self.dtype)
        mask = word_mask(captions.lengths, words.shape[1], words)
        image = {"vectors": l2(images.vectors.to(self.dtype)), "regions": regions.to(self.dtype)}
        caption = {"vectors": l2(captions.vectors.to(self.dtype)), "mask": mask}
        caption["words"] = words * mask[..., None]
        for side, encoding in ((image, images), (caption, captions)):
            norms = getattr(encoding, "norms", None)
            if norms is not None:
                side["norms"] = norms.to(self.dtype)
        # what is compared: the fragments, after the dustbins if there are any
        image["keys"], caption["queries"] = image["regions"], caption["words"]
        kind = MATCHINGS[self.matching]
        if kind.dustbin:
            bins = [image["vectors"], caption["vectors"]]
            if kind.dustbin == "prompt":
                prompts = (self.image_prompt, self.text_prompt)
                bins = [l2(x).expand_as(bin_) for x, bin_ in zip(prompts, bins, strict=True)]
            image["keys"] = torch.cat([bins[0][:, None], image["regions"]], 1)
            if kind.family == "transport":
                scale = mean_scale(caption["words"], bins[1]) if lean else None
                if scale is None:
                    caption["queries"] = torch.cat([bins[1][:, None], caption["words"]], 1)
                else:
                    caption["mean_scale"] = scale
        return image, caption

    # -- comparison -----------------------------------------------------------------------------------------

    def similarity(self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False) -> Tensor:
        """Compare every image with every caption: (B, C).

        ``logits`` changes nothing here: these scores do not saturate.
        """
        # 1. Captions of nearly equal length form groups, so that a group is one dense block with each image.
        # 2. In training a group meets all images at once; if all groups together exceed the memory budget,
        #    each is computed again in the backward pass.
        # 3. Without gradients groups are small and meet the images slab by slab: both stay in the cache.
        # 4. The groups' columns go back to the captions' order.
        device = images.vectors.device
        with comparing(device):
            if MATCHINGS[self.matching].family == "vector":
                return self._compare_vectors(images, captions)
            training, lengths = torch.is_grad_enabled(), captions.lengths
            # reading whether a dustbin is a mean would make a GPU wait
            lean = not training and not accelerated(device)
            image, caption = self._sides(images, captions, lean=lean)
            n_images, n_keys = image["keys"].shape[:2]
            column = n_images * n_keys * caption["words"].element_size()  # bytes of a word's cosines
            column *= BYTES[MATCHINGS[self.matching].family]
            small = not training and not accelerated(device)
            price = GROUP_BYTES / column if accelerated(device) else max(2.0, 3e4 / (n_images * n_keys))
            groups = group_captions(
                lengths,
                group_cost=price,  # a group takes some fifty calls
                max_words=GROUP_WORDS if small else max(1, self.memory_budget // column),
            )
            again = training and column * sum(g.words + len(g.rows) for g in groups) > self.memory_budget
            grouped, columns = Grouped(groups, device), []
            for group, part in zip(groups, self._parts(caption, grouped, groups), strict=True):
                if not small:
                    columns.append(grouped.compute(self._compared, image, part, again=again))
                else:
                    columns.append(self._slab_by_slab(image, part, group))
            return grouped.join(columns)

    @staticmethod
    def _parts(caption: Side, grouped: Grouped, groups: list[Group]) -> list[Side]:
        """Cut the captions' side into groups, each as wide as its longest caption."""
        beyond = caption["queries"].shape[1] - caption["words"].shape[1]
        split = {name: grouped.split(tensor) for name, tensor in caption.items()}
        parts = []
        for i, group in enumerate(groups):
            w = group.width
            widths = {"words": w, "mask": w, "norms": w, "queries": w + beyond}
            parts.append({k: v[i][:, : widths[k]] if k in widths else v[i] for k, v in split.items()})
        return parts

    def _slab_by_slab(self, image: Side, part: Side, group: Group) -> Tensor:
        """Scores (B, C) of one group, as many images at a time as the cache holds; without gradients."""
        part["flat"] = part["queries"].transpose(0, 1).flatten(0, 1)  # (m C, D)
        n_keys = image["keys"].shape[1]
        slab = max(1, SLAB_ENTRIES // (n_keys * len(group.rows) * (group.width + 1)))
        slabs = zip(*(v.split(slab) for v in image.values()), strict=True)
        return torch.cat([self._block(dict(zip(image, v, strict=True)), part) for v in slabs])

    def _compared(self, image: Side, caption: Side) -> Tensor:
        """:meth:`_block`, compiled where that is wanted."""
        if accelerated(caption["words"].device):
            image, caption = (
                {k: v.contiguous() if k == "mask" else alike(v)[0] for k, v in side.items()}
                for side in (image, caption)
            )
        varying = [(x, 0) for x in (*image.values(), *caption.values())]
        varying += [(x, 1) for x in caption.values() if x.ndim > 1 and x is not caption["vectors"]]
        scores: Tensor = call(OMIT._block, self, image, caption, varying=varying)
        return scores

    def _block(self, image: Side, caption: Side, plain: bool = False) -> Tensor:
        """Scores (B, C) of captions side by side."""
        kind = MATCHINGS[self.matching]
        if kind.family == "attention":
            return attention_scores(image, caption, self.attention_tau, bool(kind.dustbin))
        s, p, q = self._problem(image, caption)
        return transport_scores(
            s, p, q, lam=self.lam, iterations=self.iterations, loop=self.sinkhorn, skip=kind.skip, plain=plain
        )

    def _problem(self, image: Side, caption: Side) -> tuple[Tensor, Tensor, Tensor]:
        """Cosines (B, n, m, C) and marginals of the transport, dustbins first if there are any."""
        p, q = MARGINALS[self.marginals](image, caption, self.tau)
        if MATCHINGS[self.matching].dustbin:
            p, q = add_dustbins(p, q, caption["mask"])
        return compare(image, caption), p, q

    def _compare_vectors(self, images: ImageEncoding, captions: CaptionEncoding) -> Tensor:
        v, t = self._vectors(images, captions)
        product = v @ t.t()
        if self.matching == "vse":
            return product
        square = (v * v).sum(1)[:, None] + (t * t).sum(1) - 2 * product
        return -square.clamp_min(1e-12).sqrt()

    def _vectors(self, images: ImageEncoding, captions: CaptionEncoding) -> tuple[Tensor, Tensor]:
        """Unit global vectors, for ``pem`` followed by the standard deviations minus 1."""
        v, t = l2(images.vectors.to(self.dtype)), l2(captions.vectors.to(self.dtype))
        if self.matching == "vse":
            return v, t
        wide, long = getattr(images, "spread", None), getattr(captions, "spread", None)
        if wide is None or long is None:
            image, caption = self._sides(images, captions)
            wide = l2(v + pooled(self.image_pool, image["regions"]))
            long = l2(t + pooled(self.text_pool, caption["words"], caption["mask"]))
        # minus 1: the difference is the same, and small numbers do not cancel
        return torch.cat([v, torch.expm1(wide)], 1), torch.cat([t, torch.expm1(long)], 1)

    # -- given pairs and plans ------------------------------------------------------------------------------

    @property
    def pair_dim(self) -> int:
        """Width of the common space with ``matching="vse"``, else 1."""
        return self.embed_dim if self.matching == "vse" else 1

    def pair_vectors(
        self, images: ImageEncoding, captions: CaptionEncoding, *, paired: bool = False
    ) -> Tensor:
        """Return products of unit vectors with ``matching="vse"``, else the score as a vector of length 1."""
        if self.matching == "vse":
            return self.cosine_products(images, captions, paired)
        return super().pair_vectors(images, captions, paired=paired)

    def paired_similarity(
        self, images: ImageEncoding, captions: CaptionEncoding, *, logits: bool = False
    ) -> Tensor:
        """Compare image i with caption i only, (n,); ``logits`` changes nothing here."""
        self.check_pairs(images, captions)
        with torch.autocast(images.vectors.device.type, enabled=False):
            if MATCHINGS[self.matching].family == "vector":
                v, t = self._vectors(images, captions)
                if self.matching == "vse":
                    return (v * t).sum(1)
                return -(v - t).square().sum(1).clamp_min(1e-12).sqrt()
            sides = [{k: v[:, None] for k, v in side.items()} for side in self._sides(images, captions)]
            scores: Tensor = torch.vmap(functools.partial(self._block, plain=True))(*sides)  # (n, 1, 1)
            return scores.flatten()

    @torch.no_grad()
    def transport_problem(
        self, images: ImageEncoding, captions: CaptionEncoding
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is transported, dustbins first if there are any.

        That is the cosines (B, C, n, m) of n regions and m words, and the marginals of the plan (B, C, n) and
        (B, C, m), alpha and beta of Eq. 1.
        """
        s, p, q = self._problem(*self._sides(images, captions))
        p, q = (x.expand(len(s), x.shape[1], s.shape[3]).permute(0, 2, 1) for x in (p, q))
        return s.permute(0, 3, 1, 2), p, q

    @torch.no_grad()
    def alignments(self, images: ImageEncoding, captions: CaptionEncoding) -> Tensor:
        """Return how every pair is aligned, (B, C, n, m), for figures and measurements.

        These are the plans; for cross attention the shares divided by the number of words, so that a word's
        column sums to what a plan with uniform weights gives it. Row 0 (and for transport column 0) belong to
        the dustbin where the matching has one. Zero at padding.

        Raises
        ------
        ValueError
            When the matching compares vectors only.
        """
        kind = MATCHINGS[self.matching]
        if kind.family == "vector":
            raise ValueError(f"matching={self.matching!r} compares vectors; it aligns no fragments")
        image, caption = self._sides(images, captions)
        if kind.family == "attention":
            share, _ = attention(image, caption, self.attention_tau)
            mask = caption["mask"].t()
            return (share * (mask / mask.sum(0))).permute(0, 3, 1, 2)
        plans = transport_plans(*self._problem(image, caption), self.lam, self.iterations, self.sinkhorn)
        return plans.permute(0, 3, 1, 2)
