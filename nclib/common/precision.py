"""Precision of the products of matrices: one name for a run, and the torch settings that it means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("auto", "fp32", "tf32", "bf16")
"""float32; float32 with products in TF32, on a GPU only; bfloat16 autocast in encoders (on a GPU not in
bidirectional GRUs) and, on a GPU, in the comparison of pairs, with norms, softmax, losses and transport in
float32. ``auto`` is tf32 on a GPU."""


def resolved(precision: str, device: torch.device | str) -> str:
    """Return the name that ``auto`` means on a device, which need not be there; other names as they are.

    Examples
    --------
    >>> resolved("auto", "cpu"), resolved("auto", "cuda:1"), resolved("bf16", "cpu")
    ('fp32', 'tf32', 'bf16')
    """
    if precision != "auto":
        return precision
    cuda = torch.cuda.is_available() if str(device) == "auto" else str(device).startswith("cuda")
    return "tf32" if cuda else "fp32"


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a ValueError when a device has no such products."""
    if precision == "tf32" and device.type != "cuda":
        raise ValueError(
            f"precision='tf32': {device} has no TF32, a number type of NVIDIA GPUs; take 'fp32' or 'auto'"
        )


@contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """Compute products of float32 matrices on a device in float32 (``"fp32"``), or on a GPU in TF32.

    Parameters
    ----------
    precision : {"fp32", "tf32", "bf16"}
    device : torch.device
    """
    before = torch.get_float32_matmul_precision()
    low = precision != "fp32" and device.type == "cuda"
    torch.set_float32_matmul_precision("high" if low else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Compute a forward pass in a precision: :func:`products`, and under ``"bf16"`` autocast."""
    low = precision == "bf16"
    with products(precision, device), torch.autocast(device.type, dtype=torch.bfloat16, enabled=low):
        yield
