"""Training pairs with their noise, in batches that a background thread loads where the data lie on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nclib.common.prefetch import ahead
from nclib.data import Split
from nclib.methods import Batch, Truth
from nclib.noise import Mismatch

AHEAD = 2  # batches that are read from disk while one is in use; 38 MB each at the papers' sizes


class NoisyPairs:
    """Training pairs of a learner: every caption with the image that the noise gave it.

    Parameters
    ----------
    split : Split
    noise : Mismatch
        Which image each caption is paired with, and which pairs are still matched.
    truth_is_known : bool
        False for data whose own pairs are partly wrong.
    """

    def __init__(self, split: Split, noise: Mismatch, *, truth_is_known: bool = True) -> None:
        self.split, self.noise, self.truth_is_known = split, noise, truth_is_known
        self.image_of = torch.as_tensor(noise.image_of, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.image_of)

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        """Load the pairs at ``index``, int64 (B,), onto ``device``; pair i is caption i with its image."""
        return _on(device, self._host_batch(index, device))

    def batches(self, order: Tensor, size: int, least: int, device: torch.device) -> Batches:
        """Return the pairs at ``order`` as :class:`Batches` on ``device``; those from disk are read ahead."""
        return Batches(
            lambda index: self._host_batch(index, device),
            order,
            size,
            least,
            place=lambda batch: _on(device, batch),
            n_ahead=self.n_ahead,
        )

    @property
    def n_ahead(self) -> int:
        """Batches that a background thread loads ahead; 0 where the data are in memory."""
        return AHEAD if self.split.on_disk else 0

    def _host_batch(self, index: Tensor, device: torch.device) -> Batch:
        """Load pairs into the host's memory, in any thread: no current device is needed."""
        pinned = self.split.on_disk and device.type == "cuda"
        images = self.split.features(self.image_of[index].numpy(), pinned=pinned)
        return Batch(index, images, self.split.captions.batch(index.numpy()))

    def truth(self) -> Truth:
        """Return the ground truth for diagnosis; relevance where the data know it."""
        return Truth(self.noise.matched, self._relevance if self.split.has_relevance else None)

    def _relevance(self, image_pair: Tensor, caption_pair: Tensor) -> Tensor:
        rows = self.image_of[image_pair].numpy()
        return torch.from_numpy(self.split.relevance(rows, caption_pair.numpy()))


def _on(device: torch.device, batch: Batch) -> Batch:
    return Batch(batch.index, batch.images.to(device, non_blocking=True), batch.captions.to(device))


class Batches:
    """Batches of pairs in a given order, with a length.

    Parameters
    ----------
    load : callable
        Makes a batch from positions.
    order : Tensor, int64, (N,)
    size, least : int
        Pairs in a batch; a last one with fewer than ``least`` is left out.
    place : callable, optional
        Finishes a batch in the thread that asks for it.
    n_ahead : int
        Batches that a background thread loads ahead; 0 loads each when it is asked for.
    """

    def __init__(
        self,
        load: Callable[[Tensor], Batch],
        order: Tensor,
        size: int,
        least: int,
        *,
        place: Callable[[Batch], Batch] | None = None,
        n_ahead: int = 0,
    ) -> None:
        n, rest = len(order), len(order) % size
        last = n - rest if rest < least else n
        self.load, self.chunks = load, list(order[:last].split(size)) if last else []
        self.place, self.n_ahead = place, n_ahead

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[Batch]:
        loaded = ahead(self.load, self.chunks, self.n_ahead) if self.n_ahead else map(self.load, self.chunks)
        return loaded if self.place is None else map(self.place, loaded)
