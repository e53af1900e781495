"""The entries of the golden runs of these models, see tests/golden/golden.py."""

from baselines.omit import MODELS
from cases import Entry, of_models, pairs

VARIANTS = {
    "chan": ({"pooling": "mean"}, {"attend": False}),
    "hrem": ({"relations_after": 0},),
    "pcme": ({"compare": "dot"}, {"sentence": "final"}),
    "pvse": ({"sentence": "final"},),
    "teran": ({"shared": True},),
    "vsrn": ({"norm": "unit"},),
}


def entries() -> dict[str, Entry]:
    """Return every entry by its name."""
    adamp = pairs("plain", optimizer="adamp", weight_decay=0.1)
    return {**of_models(MODELS, VARIANTS), "run adamp": adamp}
