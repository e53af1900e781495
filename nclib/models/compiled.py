"""Encoders and comparison of pairs as compiled graphs on a GPU, from the formulas that run elsewhere.

``torch.compile`` fuses what lies between the products of matrices: at the papers' size the similarity nodes
of SGR and SAF take 6.9 ms, forward and backward, in place of 23 (H100, TF32).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MODES = ("auto", "off")
RECOMPILE_LIMIT = 64
"""Graphs of one function: models, with and without gradients, precisions; torch's own limit is 8."""

HALVES_FROM = 512
"""Least width of a map by halves. They are written and read again, 12 bytes a number, which takes as long as
the product saves at about 256. On one H100 SGR took 34 ms a step in fp32 with halves in the maps of 1,024
numbers alone; with halves in those of 256 as well it took 46 ms on one H200."""

SAID = ("The .grad attribute of a Tensor", "TensorFloat32 tensor cores", r"\s*Online softmax is disabled")
"""Beginnings of what the compiler says while it traces: of inputs that it asks for a gradient, of a precision
that the run chose, of its own choices."""

_mode = "auto"
_refused: set[tuple[Callable[..., Any], type]] = set()
"""What the compiler failed at: functions, and the types of their first inputs."""


@contextmanager
def compiling(mode: str) -> Iterator[None]:
    """Compile comparisons on a GPU within a ``with`` block (``"auto"``), or run them eagerly (``"off"``).

    Second derivatives need ``"off"``. The setting holds for all threads.
    """
    global _mode
    before, _mode = _mode, mode
    try:
        yield
    finally:
        _mode = before


def wanted(device: torch.device) -> bool:
    """Return whether comparisons on a device are compiled."""
    return _mode == "auto" and device.type == "cuda" and _compiler_is_there()


@cache
def _compiler_is_there() -> bool:
    own = os.environ.get("CC")  # as triton looks for it
    needed = {
        "triton, the compiler's back end,": importlib.util.find_spec("triton"),
        "a C compiler, which triton needs,": own or shutil.which("gcc") or shutil.which("clang"),
    }
    missing = [what for what, there in needed.items() if not there]
    if missing:
        _say(f"{missing[0]} is not installed: pairs are compared eagerly on the GPU, several times slower")
    return not missing


def _say(text: str) -> None:
    warnings.warn(f"{text}; mend it, or give compile='off'", stacklevel=2)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    _configure()
    # An analysis that is not made for sizes which vary, and stops the compiler of torch 2.11 there.
    return torch.compile(function, options={"triton.coalesce_tiling_analysis": False})


@cache
def _configure() -> None:
    """Set what torch has for the whole process only."""
    import torch._dynamo  # a second, and only here
    import torch._functorch.config
    import torch.fx.experimental._config

    # The analysis of ranges knows no bound for the inverse of a size that varies: it logs a warning ("failed
    # while executing pow_by_natural"), and assumes none.
    logging.getLogger("torch.utils._sympy.interp").setLevel(logging.ERROR)
    dynamo, functorch = torch._dynamo.config, torch._functorch.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, RECOMPILE_LIMIT)
    # Sizes that are equal in the first batch, as many captions as images, need not be so in the next.
    torch.fx.experimental._config.use_duck_shape = False
    if hasattr(functorch, "force_non_lazy_backward_lowering"):
        # A backward pass that the compiler fails at is noticed in :func:`call`, not in the middle of a step.
        functorch.force_non_lazy_backward_lowering = True


def call(function: Callable[..., Any], *inputs: Any, varying: Sequence[tuple[Tensor, int]]) -> Any:
    """Return ``function(*inputs)``, compiled where that is :func:`wanted` on the device of the tensors.

    Parameters
    ----------
    function : callable
        A plain function; its first input may be the model. One graph: no reads of values on the host.
    *inputs
        Tensors, models and settings.
    varying : sequence of (Tensor, int)
        Dimensions whose size changes from call to call, such as the words of the longest caption. They are
        symbols from the first call on, so that nothing is compiled again, and a run that is continued
        computes with the same code.
    """
    asked = function, type(inputs[0])
    if asked in _refused or not wanted(varying[0][0].device):
        return function(*inputs)
    for tensor, dim in varying:
        torch._dynamo.maybe_mark_dynamic(tensor, dim)
    with warnings.catch_warnings():
        for text in SAID:
            warnings.filterwarnings("ignore", message=text)
        try:
            return _compiled(function)(*inputs)
        except (torch._dynamo.exc.TorchDynamoException, AssertionError) as error:
            _refused.add(asked)
            cause = str(error).strip().splitlines()[:1]
    _say(f"{function.__qualname__} cannot be compiled by torch {torch.__version__} {cause}: it runs eagerly")
    return function(*inputs)


def alike(*encoded: Tensor) -> tuple[Tensor, ...]:
    """Return encodings as every comparison has them, so that none needs a graph of its own.

    Contiguous; and where gradients are on, all of them ask for one, also those that REPAIR's bank holds.
    """
    asks = torch.is_grad_enabled()
    return tuple(
        (x.detach().requires_grad_() if asks and not x.requires_grad else x).contiguous() for x in encoded
    )


def comparing(device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast of a comparison: on a GPU that of the run, elsewhere none."""
    if device.type == "cuda" and torch.is_autocast_enabled("cuda"):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Map float32 values (..., K) by a weight (N, K) and a bias (N,) to (..., N), to about 1e-6, on a GPU.

    A number is the sum of two of bfloat16, its halves. Three products of halves, summed in float32, take less
    time than one product in float32 where K is at least :data:`HALVES_FROM`; below, that one is taken.
    """
    if x.shape[-1] < HALVES_FROM:
        return F.linear(x, weight, bias)
    flat = x.reshape(-1, x.shape[-1])
    product: Tensor = _Product.apply(flat, weight)
    return product.view(*x.shape[:-1], -1) + bias


class _Product(torch.autograd.Function):
    """Product of (M, K) and the transpose of (N, K) by halves, with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _mm(_left(x, 1), _right(weight, 1).t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        of_x = _mm(_left(grads[0], 1), _right(weight, 0))
        return of_x, _mm(_left(grads[0], 0).t(), _right(x, 0))


def _left(x: Tensor, dim: int) -> Tensor:
    """Halves of a left factor side by side: with those of :func:`_right` one product, three times as long."""
    high, low = _halves(x)
    return torch.cat([high, high, low], dim)


def _right(x: Tensor, dim: int) -> Tensor:
    high, low = _halves(x)
    return torch.cat([high, low, high], dim)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what bfloat16 holds of float32 numbers, and what it holds of the rest.

    Rounded by bits: a compiler computes in float32 and leaves out a cast to bfloat16 and back.
    """
    high = ((x.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
    return high.to(torch.bfloat16), (x - high).to(torch.bfloat16)


def _mm(a: Tensor, b: Tensor) -> Tensor:
    """Product of bfloat16 matrices, summed and returned in float32."""
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
