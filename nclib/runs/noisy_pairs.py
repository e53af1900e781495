"""Training pairs with their noise, in batches of images that lie on the device, in memory or on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nclib.common.checks import LARGEST
from nclib.common.prefetch import X, Y, ahead
from nclib.data import Split
from nclib.methods import Batch, Truth
from nclib.noise import Mismatch

AHEAD = 2  # batches that are read while one is in use; 38 MB each at the papers' sizes
SHARE = 3  # "auto" puts images on a GPU where they take at most a third of its free memory
BLOCK = 64  # images that are copied to the device together


class DevicePictures:
    """All images of a split in the memory of a device, in the number type in which they are stored.

    Parameters
    ----------
    split : Split
        Read once, and checked as by :meth:`~nclib.data.Split.features`, with its errors.
    device : torch.device
    """

    def __init__(self, split: Split, device: torch.device) -> None:
        n, dtype = split.n_images, getattr(torch, split.images.dtype.name)
        self.boxes = split.box_numbers(np.arange(n)).to(device) if split.boxes_in_features else None
        self.images = torch.empty(split.images.shape, dtype=dtype, device=device)
        total = torch.empty(n, device=device)  # of squares
        for rows in torch.arange(n).split(BLOCK):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            self.images[part] = torch.from_numpy(np.asarray(split.images[rows.numpy()]))
            total[part] = self.features(rows).square().sum((1, 2))
        for row in (~(total <= LARGEST)).nonzero().tolist():
            split.features(row)  # says what is wrong with the image

    def features(self, rows: Tensor) -> Tensor:
        """Return what ``Split.features`` gives for images ``rows``, int64 (B,), on the device."""
        rows = rows.to(self.images.device, non_blocking=True)
        numbers = self.images.index_select(0, rows)
        if numbers.dtype == torch.uint8:  # a GPU would multiply by the inverse of a plain number
            numbers = numbers / numbers.new_full((), 255, dtype=torch.float32)
        numbers = numbers.float()
        return numbers if self.boxes is None else torch.cat([numbers, self.boxes.index_select(0, rows)], -1)


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
        self.pictures: DevicePictures | None = None

    def __len__(self) -> int:
        return len(self.image_of)

    def place(self, where: str, device: torch.device) -> None:
        """Put the images on the run's device, unless they are there.

        Parameters
        ----------
        where : {"auto", "host", "device"}
            ``auto``: where the device is a GPU of CUDA, and a third of its free memory holds them. On a CPU
            all three are the same, and images on disk stay there.
        device : torch.device

        Raises
        ------
        ValueError
            When they do not fit, or as of :class:`DevicePictures`.
        """
        if where == "host" or device.type == "cpu" or self.pictures is not None:
            return
        split, on_cuda = self.split, device.type == "cuda"
        n, regions, width = split.images.shape
        size = split.images.nbytes + 4 * n * regions * (split.feature_dim - width)  # boxes in float32
        free = torch.cuda.mem_get_info(device)[0] if on_cuda else size
        if where == "auto" and not (on_cuda and SHARE * size <= free):
            return
        if size > free:
            raise ValueError(
                f"pictures_on='device': the images of split {split.name!r} take {size / 1e9:.1f} GB, and "
                f"{device} has {free / 1e9:.1f} GB free; take 'auto' or 'host'"
            )
        self.pictures = DevicePictures(split, device)

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        """Load the pairs at ``index``, int64 (B,), onto ``device``; pair i is caption i with its image."""
        return on_device(device, self.load(device, index))

    def n_ahead(self, device: torch.device) -> int:
        """Return how many batches a thread loads ahead; 0 where images lie in the memory of ``device``."""
        in_place = self.pictures is not None or (device.type == "cpu" and not self.split.on_disk)
        return 0 if in_place else AHEAD

    def in_order(self, load: Callable[[X], Y], items: Iterable[X], device: torch.device) -> Iterator[Y]:
        """Yield ``load(item)`` in order; where that pays, a thread loads before it is asked."""
        n = self.n_ahead(device)
        return ahead(load, items, n) if n else map(load, items)

    def load(self, device: torch.device, index: Tensor) -> Batch:
        """Load pairs for a device: images where they lie, captions on the host; in any thread."""
        rows, captions = self.image_of[index], self.split.captions.batch(index.numpy())
        if self.pictures is not None:
            return Batch(index, self.pictures.features(rows), captions)
        return Batch(index, self.split.features(rows.numpy(), pinned=device.type == "cuda"), captions)

    def truth(self) -> Truth:
        """Return the ground truth for diagnosis; relevance where the data know it."""
        return Truth(self.noise.matched, self._relevance if self.split.has_relevance else None)

    def _relevance(self, image_pair: Tensor, caption_pair: Tensor) -> Tensor:
        rows = self.image_of[image_pair].numpy()
        return torch.from_numpy(self.split.relevance(rows, caption_pair.numpy()))


def on_device(device: torch.device, batch: Batch) -> Batch:
    """Return a loaded batch on a device."""
    return Batch(batch.index, batch.images.to(device, non_blocking=True), batch.captions.to(device))


class Batches:
    """Batches of pairs on a device in a given order, with a length; read ahead where that pays.

    Parameters
    ----------
    pairs : NoisyPairs
    order : Tensor, int64, (N,)
    size, least : int
        Pairs in a batch; a last one with fewer than ``least`` is left out.
    device : torch.device
    """

    def __init__(self, pairs: NoisyPairs, order: Tensor, size: int, least: int, device: torch.device) -> None:
        n, rest = len(order), len(order) % size
        last = n - rest if rest < least else n
        self.pairs, self.device = pairs, device
        self.chunks = list(order[:last].split(size)) if last else []

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[Batch]:
        loaded = self.pairs.in_order(partial(self.pairs.load, self.device), self.chunks, self.device)
        return map(partial(on_device, self.device), loaded)
