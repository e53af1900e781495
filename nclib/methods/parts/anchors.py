"""Soft labels from closeness to anchors in both modalities (BiCro)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nclib import losses

ANCHOR_SHARE = 10  # a clean batch of B pairs has B // ANCHOR_SHARE + 1 anchors


def small_loss(ell: Tensor, keep_ratio: float) -> Tensor:
    """Return the ``floor(B keep_ratio)`` smallest losses of a batch (B,), but at least one, in any order."""
    return ell.topk(max(1, int(len(ell) * keep_ratio + 1e-9)), largest=False).values


def by_reliability(S: Tensor, margin: float = 0.2) -> Tensor:
    r"""Order the pairs of a clean batch, (B,), the least reliable first; the last ones are the anchors.

    The score is :math:`\tilde p_i = \mathrm{clip}(\alpha - \ell_i / 2, 0, \alpha)`, :math:`\ell` the triplet
    loss with the mean over negatives. Many pairs reach alpha; among equal scores the larger
    :math:`S_{ii} - \max_{j\ne i} S_{ij}` is more reliable, then the earlier pair.

    Parameters
    ----------
    S : Tensor, (B, B)
        Similarities, images in rows.
    margin : float
        alpha.
    """
    score = (margin - losses.triplet(S, margin, "mean") / 2).clamp(0, margin)
    own = torch.eye(len(S), dtype=torch.bool, device=S.device)
    gap = S.diagonal() - S.masked_fill(own, -torch.inf).amax(1)
    first = gap.argsort(descending=True, stable=True)
    return first[score[first].argsort(descending=True, stable=True)].flip(0)


def n_anchors(batch_size: int) -> int:
    """Return the number of anchors of a clean batch of B pairs, ``floor(B / 10) + 1``."""
    return batch_size // ANCHOR_SHARE + 1


def _ratio(x: Tensor, y: Tensor) -> Tensor:
    """Return the smaller of x / y and y / x; 0 where one of the two is 0."""
    whole = (x != 0) & (y != 0)
    quotient = torch.where(whole, x, 1.0) / torch.where(whole, y, 1.0)
    smaller = torch.where(quotient < 1, quotient, 1 / quotient)
    return torch.where(whole, smaller, 0.0)


def closeness_ratios(u: Tensor, t: Tensor, anchor_u: Tensor, anchor_t: Tensor) -> tuple[Tensor, Tensor]:
    """Compare how close pairs are to the anchors in the two modalities.

    :math:`R^I`: with c the anchor whose image is nearest, the ratio (at most 1) of the closeness of the
    images to the closeness of the captions. :math:`R^T`: the same with c the nearest by caption. Closeness is
    the cosine, as in the official code; the paper says distance.

    Parameters
    ----------
    u, t, anchor_u, anchor_t : Tensor, (B, D), (B, E), (a, D), (a, E)
        Global vectors of the images and captions of the pairs, and of the anchors.

    Returns
    -------
    R_I, R_T : Tensor, (B,)
        At most 1; negative where cosines differ in sign, 0 where one of them is 0.
    """
    pairs = ((u, anchor_u), (t, anchor_t))
    image, text = (normalize(x, dim=1) @ normalize(c, dim=1).T for x, c in pairs)  # (B, a)
    by_image, by_text = image.argmax(1, keepdim=True), text.argmax(1, keepdim=True)
    r_image = _ratio(image.gather(1, by_image), text.gather(1, by_image))
    r_text = _ratio(text.gather(1, by_text), image.gather(1, by_text))
    return r_image[:, 0], r_text[:, 0]


def _cut(y: Tensor, threshold: float) -> Tensor:
    return y.masked_fill(y <= threshold, 0.0).clamp(0, 1)


def noisy_labels(r_image: Tensor, r_text: Tensor, threshold: float = 0.5) -> Tensor:
    """Return soft labels of noisy pairs, (B,) in [0, 1]: :math:`(R^I + R^T) / 2`, 0 up to the threshold.

    The ratios, (B,), are those of :func:`closeness_ratios`.
    """
    return _cut((r_image + r_text) / 2, threshold)


def clean_labels(r_image: Tensor, r_text: Tensor, order: Tensor, threshold: float = 0.5) -> Tensor:
    r"""Soft labels of a clean batch, (B,), 1 for anchors, else :math:`\frac12 + \frac14 (R^I + R^T)`.

    Ratios and threshold as in :func:`noisy_labels`; the last :func:`n_anchors` of ``order``, (B,), from
    :func:`by_reliability`, are the anchors.
    """
    y = _cut(0.5 + (r_image + r_text) / 4, threshold)
    return y.index_fill(0, order[-n_anchors(len(order)) :], 1.0)
