r"""deep-SM: deep semantic matching (Wei et al., IEEE Transactions on Cybernetics 47(2), 2017).

The original trains one classifier per modality and retrieves in the space of class probabilities. Its rows in
the tables of MRL and UOT-RCL are MRL's networks and prototypes trained with cross entropy, and that is what
this is: :math:`-\frac1n \sum_i \sum_j \log p^i_{j, y^i_j}` over modalities i and pairs j.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from nclib.label_noise.base import DeepMethod, LabelBatch, LabelLoop, Options, Terms, option, register


@dataclass(frozen=True)
class DeepSMOptions(Options):
    """Options of deep-SM."""

    tau1: float = option(1.0, above=0, help="temperature of the class probabilities")


@register(
    "deep_sm",
    summary="cross entropy of both modalities against shared class prototypes",
    paper="Wei et al., TCYB 2017",
)
class DeepSM(DeepMethod):
    """Cross entropy on MRL's networks; ``options`` is a :class:`DeepSMOptions`."""

    Options = DeepSMOptions

    def step(self, loop: LabelLoop, batch: LabelBatch) -> Terms:
        net = loop.network
        net.prototypes.normalise()
        logits_v = net.prototypes(net.images(batch.images)) / self.options.tau1
        logits_t = net.prototypes(net.texts(batch.texts)) / self.options.tau1
        return {
            "images": cross_entropy(logits_v, batch.image_labels, reduction="none").mean(),
            "texts": cross_entropy(logits_t, batch.text_labels, reduction="none").mean(),
        }
