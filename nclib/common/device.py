"""The device that networks run on."""

from __future__ import annotations

import torch


def choose_device(name: str = "auto") -> torch.device:
    """Return the device called ``auto`` (a GPU when there is one), ``cpu``, ``cuda``, ``cuda:1``, ...

    Raises
    ------
    ValueError
        When the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which the device "meta" cannot do
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={name!r} cannot be used here ({error}); take 'auto' or 'cpu'") from error
    return device
