"""Training methods for wrong pairs by name: one file per method, in the order of its paper.

To write one's own, import the names of this module: subclass :class:`Method`, declare the fields of its
``Options`` with :func:`option`, decorate the class with :func:`register`.

Examples
--------
>>> from dataclasses import dataclass
>>> from nclib import losses
>>> from nclib.methods import Method, Options, available, build, option, register, settings
>>> @dataclass(frozen=True)
... class ContrastOptions(Options):
...     tau: float = option(0.05, above=0, help="temperature")
>>> @register("contrast", summary="InfoNCE on all pairs")
... class Contrast(Method):
...     Options = ContrastOptions
...
...     def warmup_step(self, loop, batch):
...         return {"infonce": losses.info_nce(loop.similarity(batch), self.options.tau).mean()}
...
...     def begin_epoch(self, loop):
...         return loop.batches(purpose="pairs")
...
...     step = warmup_step
>>> available()["contrast"]
'InfoNCE on all pairs'
>>> METHODS.remove("contrast")  # an example leaves nothing behind
>>> build("l2rm", rho=0.2).options.rho
0.2
>>> build("l2rm", roh=0.2)
Traceback (most recent call last):
ValueError: bad parameters: unknown parameter 'roh'; did you mean 'rho'?
>>> settings("ncr", "f30k")
{'warmup_epochs': 5, 'epochs': 40, 'decay_every': 30}
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from nclib.methods.base import (
    METHODS,
    AllPairs,
    Batch,
    ClosedForm,
    Loop,
    Method,
    Options,
    Steps,
    StepTerms,
    Terms,
    Truth,
    option,
    register,
)
from nclib.methods.coteaching import CoTeaching
from nclib.methods.parts.detector import detector_report

__all__ = [
    "AllPairs",
    "Batch",
    "ClosedForm",
    "CoTeaching",
    "Loop",
    "Method",
    "Options",
    "StepTerms",
    "Steps",
    "Terms",
    "Truth",
    "available",
    "build",
    "detector_report",
    "option",
    "options",
    "register",
    "settings",
]

# A new method is one new file here: importing it registers it.
for _file in sorted(Path(__file__).parent.glob("[!_]*.py")):
    import_module(f"{__name__}.{_file.stem}")

available, build, options, settings = METHODS.available, METHODS.build, METHODS.options, METHODS.settings
