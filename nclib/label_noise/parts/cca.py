"""Correlation loss of DCCA and DCCAE, and networks that end in a linear CCA."""

from __future__ import annotations

import torch
from torch import Tensor

from nclib.label_noise.base import Shape
from nclib.label_noise.parts.networks import Heads

EMBEDDED = 1024  # samples passed at a time without gradient


def _covariances(h1: Tensor, h2: Tensor, r1: float, r2: float) -> tuple[Tensor, Tensor, Tensor]:
    n = len(h1)
    if n < 2:
        raise ValueError("a covariance needs at least two samples; use a larger batch_size")
    exact = torch.float32 if h1.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    h1, h2 = h1.to(exact), h2.to(exact)
    h1, h2 = h1 - h1.mean(0), h2 - h2.mean(0)
    s11, s22 = (
        h.T @ h / (n - 1) + r * torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
        for h, r in ((h1, r1), (h2, r2))
    )
    return s11, h1.T @ h2 / (n - 1), s22


def correlations(h1: Tensor, h2: Tensor, r1: float = 1e-3, r2: float = 1e-3) -> Tensor:
    r"""Return the canonical correlations of two sets of outputs, (min(o1, o2),), largest first.

    They are the singular values of :math:`T = (\Sigma_{11} + r_1 I)^{-1/2} \Sigma_{12} (\Sigma_{22} + r_2
    I)^{-1/2}`; covariances with divisor n - 1. Cholesky factors replace the inverse roots: the singular
    values are the same, and the gradient is finite where eigenvalues coincide.

    Parameters
    ----------
    h1, h2 : Tensor, (n, o1) and (n, o2)
        Row i of both belongs to one pair; n >= 2.
    r1, r2 : float > 0
        Ridges.
    """
    s11, s12, s22 = _covariances(h1, h2, r1, r2)
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(s11), s12, upper=False)
    t = torch.linalg.solve_triangular(torch.linalg.cholesky(s22), half.T, upper=False)
    return torch.linalg.svdvals(t)


class CorrelatedHeads(Heads):
    """Perceptrons without final normalisation, then a linear CCA of their outputs, part of their state."""

    image_mean: Tensor
    text_mean: Tensor
    image_map: Tensor
    text_map: Tensor

    def __init__(self, shape: Shape, outputs: int) -> None:
        super().__init__(shape.image_dim, shape.text_dim, hidden=shape.hidden, dim=outputs, unit=False)
        for name in ("image", "text"):
            self.register_buffer(f"{name}_mean", torch.zeros(outputs))
            self.register_buffer(f"{name}_map", torch.eye(outputs))

    def images(self, x: Tensor) -> Tensor:
        """Return the canonical variates of image features, (n, d_v) -> (n, o)."""
        return (self.image_net(x) - self.image_mean) @ self.image_map

    def texts(self, x: Tensor) -> Tensor:
        """Return the canonical variates of text features, (n, d_t) -> (n, o)."""
        return (self.text_net(x) - self.text_mean) @ self.text_map

    @torch.no_grad()
    def fit_cca(self, images: Tensor, texts: Tensor, r1: float, r2: float) -> None:
        """Fit the linear CCA to the outputs of all training pairs."""
        h1, h2 = (
            torch.cat([net(part) for part in x.split(EMBEDDED)])
            for net, x in ((self.image_net, images), (self.text_net, texts))
        )
        from nclib.common.cca import canonical  # SciPy takes its time

        maps = canonical(*(c.cpu().numpy() for c in _covariances(h1, h2, r1, r2)))
        for name, h, w in (("image", h1, maps[0]), ("text", h2, maps[1])):
            getattr(self, f"{name}_mean").copy_(h.mean(0))
            getattr(self, f"{name}_map").copy_(torch.from_numpy(w))
