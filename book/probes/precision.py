"""What TF32 and bfloat16 do to results, by rounding the operands of every product on a CPU.

    python book/probes/precision.py precision --rates 0.6        # six runs a seed, a minute or two each

A GPU multiplies TF32 with 10 bits of the fraction and sums in float32; bfloat16 with 7 bits. Here the
operands of every product of matrices, forward and backward, recurrent layers included, are rounded to that
many bits, and under bfloat16 the product too. Writes ``book/measured/probe_precision.json`` after every seed.
"""

from __future__ import annotations

from contextlib import nullcontext
from tempfile import TemporaryDirectory
from typing import Any

import torch
from probe_common import Case, Part, Run, main
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BITS = {"tf32": 10, "bf16": 7}  # of the fraction, of float32's 23
METHODS = {"gce": ("plain", {"loss": "gce"}), "l2rm": ("l2rm", {})}
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_", "mv", "addmv", "dot", "linear"}


def rounded(x: Tensor, bits: int) -> Tensor:
    """Round float32 values to a fraction of ``bits`` bits."""
    drop = 23 - bits
    whole = x.view(torch.int32)
    return ((whole + (1 << (drop - 1))) & -(1 << drop)).view(torch.float32)


class Rounded(TorchDispatchMode):
    """Products of float32 matrices with rounded operands."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.bits, self.also_result = BITS[precision], precision == "bf16"
        self.products = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), function.overloadpacket.__name__
        if name not in PRODUCTS or args[0].dtype != torch.float32:
            return function(*args, **kwargs)
        self.products += 1
        first = int("add" in name)  # what is added is not multiplied
        given = [rounded(x, self.bits) if first <= i < first + 2 else x for i, x in enumerate(args)]
        found = function(*given, **kwargs)
        if self.also_result:
            found.copy_(rounded(found, self.bits))
        return found


def precision(made: Run, case: Case) -> dict[str, float]:
    """Train each method in each precision; return the test rSum by ``method.precision``."""
    found: dict[str, float] = {}
    for label, (method, options) in METHODS.items():
        for name in ("fp32", *BITS):
            with Rounded(name) if name in BITS else nullcontext() as mode, TemporaryDirectory() as folder:
                # a folder each: for nclib these are the same run
                record = made(f"{label}.{name}", method, precision="fp32", out=folder, **options)
            if mode is not None and not mode.products:
                raise RuntimeError("no product was rounded")
            found[f"{label}.{name}"] = record.metrics["test"]["rsum"]
    return found


if __name__ == "__main__":
    main(__doc__, precision=Part(precision, {"model": "saf", "protocol": "images"}))
