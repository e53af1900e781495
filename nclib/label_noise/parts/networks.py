"""Networks of two modalities and class prototypes, as in MRL and its successors."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def perceptron(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return Linear layers of the given widths (input, hidden, output) with an activation between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


class Branches(nn.Module):
    """A network per modality, from features to rows of one width; both outputs pass :meth:`finish`."""

    def __init__(self, image_net: nn.Module, text_net: nn.Module) -> None:
        super().__init__()
        self.image_net, self.text_net = image_net, text_net

    def finish(self, z: Tensor) -> Tensor:
        """Map outputs of either network to embeddings, (n, L)."""
        return z

    def images(self, x: Tensor) -> Tensor:
        """Embed image features, (n, d_v) -> (n, L)."""
        return self.finish(self.image_net(x))

    def texts(self, x: Tensor) -> Tensor:
        """Embed text features, (n, d_t) -> (n, L)."""
        return self.finish(self.text_net(x))


class Prototypes(nn.Module):
    r"""Class prototypes :math:`\mu`, (L, K): orthonormal columns at first, trained, shared by the modalities.

    :meth:`normalise` divides the stored columns by their norms. As in the official code it is called before
    every batch, outside the graph; the forward pass does not normalise.
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


class Heads(Branches):
    """An image and a text perceptron with two hidden layers and ReLU; outputs of unit length if ``unit``.

    Parameters
    ----------
    image_dim, text_dim, hidden, dim : int
        Widths of the features and of the hidden layers, and L.
    unit : bool
    """

    prototypes: Prototypes

    def __init__(
        self, image_dim: int, text_dim: int, *, hidden: int = 4096, dim: int = 512, unit: bool = True
    ) -> None:
        images, texts = (perceptron(d, hidden, hidden, dim) for d in (image_dim, text_dim))
        super().__init__(images, texts)
        self.unit = unit

    def finish(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=-1) if self.unit else z
