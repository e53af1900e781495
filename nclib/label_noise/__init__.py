"""Category retrieval under noisy labels: an image finds texts of its class, and a text images.

One file per method; ``nclib.run`` trains the names in :func:`available`. To write one's own, subclass
:class:`DeepMethod` or :class:`Projector`, declare the fields of its ``Options`` with :func:`option`, and
decorate the class with :func:`register`.

Examples
--------
>>> from dataclasses import dataclass
>>> import torch.nn.functional as F
>>> from nclib.label_noise import DeepMethod, Options, available, build, option, register
>>> @dataclass(frozen=True)
... class NearOptions(Options):
...     weight: float = option(1.0, above=0, help="weight of the distance within a pair")
>>> @register("near", summary="squared distance of the two halves of a pair")
... class Near(DeepMethod):
...     Options = NearOptions
...
...     def step(self, loop, batch):
...         v, t = loop.network.images(batch.images), loop.network.texts(batch.texts)
...         return {"distance": self.options.weight * F.mse_loss(v, t)}
>>> available()["near"]
'squared distance of the two halves of a pair'
>>> METHODS.remove("near")  # an example leaves nothing behind
>>> build("mrl", beta=0.9).options
MRLOptions(beta=0.9, tau1=1.0, tau2=1.0)
>>> build("mlr")  # doctest: +ELLIPSIS
Traceback (most recent call last):
ValueError: unknown category method 'mlr'; did you mean 'mrl'? Available: ...
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from nclib.label_noise.base import (
    METHODS,
    DeepMethod,
    LabelBatch,
    LabelLoop,
    LabelTruth,
    Options,
    Projector,
    Shape,
    Terms,
    Training,
    option,
    register,
)
from nclib.label_noise.parts.networks import Heads, Prototypes

__all__ = [
    "DeepMethod",
    "Heads",
    "LabelBatch",
    "LabelLoop",
    "LabelTruth",
    "Options",
    "Projector",
    "Prototypes",
    "Shape",
    "Terms",
    "Training",
    "available",
    "build",
    "option",
    "options",
    "register",
    "settings",
]

# A new method is one new file here: importing it registers it.
for _file in sorted(Path(__file__).parent.glob("[!_]*.py")):
    import_module(f"{__name__}.{_file.stem}")

available, build, options, settings = METHODS.available, METHODS.build, METHODS.options, METHODS.settings
