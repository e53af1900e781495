"""The networks that MRL introduced and its successors share: two perceptrons and class prototypes."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def perceptron(*widths: int) -> nn.Sequential:
    """Return Linear layers of the given widths with ReLU between them, PyTorch's default start."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Prototypes(nn.Module):
    r"""Class prototypes :math:`\mu`, (L, K): orthonormal columns at first, trained, shared by the modalities.

    :meth:`normalise` divides the stored columns by their norms; as published it is called before a batch is
    passed, outside the graph, and the forward pass then takes the values as they are.
    """

    def __init__(self, dim: int, n_classes: int) -> None:
        super().__init__()
        if n_classes > dim:
            raise ValueError(f"dim={dim} must be at least the number of classes, {n_classes}")
        start = nn.init.orthogonal_(torch.empty(dim, dim))
        self.weight = nn.Parameter(start[:, :n_classes].clone())

    @torch.no_grad()
    def normalise(self) -> None:
        """Give every column unit length, in place."""
        self.weight.copy_(F.normalize(self.weight, dim=0))

    def forward(self, z: Tensor) -> Tensor:
        r"""Return :math:`z\mu`, (n, K)."""
        return z @ self.weight


class Heads(nn.Module):
    """An image and a text perceptron with two hidden layers and ReLU; outputs of unit length.

    Parameters
    ----------
    image_dim, text_dim : int
        Widths of the features.
    hidden, dim : int
        Width of the hidden layers, and L.
    unit : bool
        Divide every output by its length.
    """

    prototypes: Prototypes

    def __init__(
        self, image_dim: int, text_dim: int, *, hidden: int = 4096, dim: int = 512, unit: bool = True
    ) -> None:
        super().__init__()
        self.image_net = perceptron(image_dim, hidden, hidden, dim)
        self.text_net = perceptron(text_dim, hidden, hidden, dim)
        self.unit = unit

    def _finish(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=-1) if self.unit else z

    def images(self, x: Tensor) -> Tensor:
        """Embed image features, (n, d_v) -> (n, L)."""
        return self._finish(self.image_net(x))

    def texts(self, x: Tensor) -> Tensor:
        """Embed text features, (n, d_t) -> (n, L)."""
        return self._finish(self.text_net(x))
