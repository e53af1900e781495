"""Which run stands for which printed row: method, model and options, by the name that the papers print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ncbook._layouts import Layout
from ncbook._printed import Cell
from ncbook.runs import Runs, select, variant

if TYPE_CHECKING:
    import pandas as pd

BACKBONES = {
    "IMRAM": "imram",
    "SAF": "saf",
    "SGR": "sgr",
    "SGRAF": "sgraf",
    "SCAN": "scan",
    "VSE∞": "vse_inf",
}
DATASETS = {
    "Flickr30K": "f30k",
    "MS-COCO": "coco",
    "CC152K": "cc152k",
    "Wikipedia": "wikipedia",
    "NUS-WIDE": "nuswide",
    "XMediaNet": "xmedianet",
}
# Test protocol of the paper -> (group of metrics in a record, number of test images)
TESTED = {"test-1k": ("", 1000), "full-5k": ("", 5000), "5fold-1k": ("folds.", 5000)}


@dataclass(frozen=True)
class Wanted:
    """The run behind a printed row: ``options`` are what differs from the method's usual settings."""

    method: str
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        return variant(self.options)

    @property
    def label(self) -> str:
        return f"{self.method} ({self.variant})" if self.options else self.method


def _method_of(name: str, backbone: str) -> Wanted:
    """``L2RM-SGR`` is l2rm on sgr, ``NCR`` is ncr on its backbone, ``SGR`` alone is plain training."""
    head, _, tail = name.partition("-")
    method = head.lower()
    if method in ("l2rm", "decl", "rcl", "ncr", "bicro", "mscn", "repair"):
        return Wanted(method, BACKBONES.get(tail or backbone, ""))
    return Wanted("plain", BACKBONES[name])


L2RM_ROWS: dict[str, dict[str, Any]] = {
    "L2RM": {},
    "L2RM w KL-divergence": {"rematch": "kl"},
    "L2RM w InfoNCE Loss": {"rematch": "infonce"},
    "L2RM w/o Partial OT": {"rho": 1.0},
    "L2RM w/o Positives Masked": {"mask": False},
    "L2RM w/o Cost Function": {"cost": "cosine"},
}
WARMUP_ROWS = {"Triplet": {"warmup": "triplet"}, "InfoNCE": {"warmup": "infonce"}}
BATCH_ROWS = {"64": {"batch_size": 64, "rho": 0.05}, "128": {}, "256": {"batch_size": 256, "rho": 0.2}}
REPAIR_ROWS: dict[str, dict[str, Any]] = {
    "REPAIR (hard)": {"variant": "hard"},
    "REPAIR (hard + drop)": {"variant": "hard+drop"},
    "REPAIR (RC + drop)": {"variant": "rc+drop"},
    "REPAIR (RC + NPR)": {},
}
OMIT_ROWS: dict[str, dict[str, Any]] = {
    "VSE": {"matching": "vse"},
    "PEM": {"matching": "pem"},
    "CAM": {"matching": "cam"},
    "Partial CAM": {"matching": "partial_cam"},
    "naive OT": {"matching": "ot"},
    "Full": {"matching": "full"},
    "Prompt": {"matching": "prompt"},
    "OMIT": {},
    "Partial OT": {},
    "Uni": {},
    "Intra": {"marginals": "intra"},
    "Inter": {"marginals": "inter"},
    "Norm": {"marginals": "norm"},
}
OMIT_MODELS = {
    **BACKBONES,
    "VSE++": "vse",
    "PVSE": "pvse",
    "PCME": "pcme",
    "OMIT": "omit",
}
CATEGORY_ROWS = {
    "MCCA": "mcca",
    "PLS": "pls",
    "DCCA": "dcca",
    "DCCAE": "dccae",
    "GMA": "gma",
    "MvDA": "mvda",
    "GSS-SL": "gss_regression",
    "ACMR": "acmr",
    "deep-SM": "deep_sm",
    "FGCrossNet": "fgcrossnet_losses",
    "SDML": "sdml",
    "DSCMR": "dscmr",
    "MRL": "mrl",
    "ELRCMR": "elrcmr",
    "UOT-RCL": "uot_rcl",
}
UOT_ROWS: dict[str, dict[str, Any]] = {
    "UOT-RCL": {},
    "UOT-RCL w/o label correction loss": {"plc": "off"},
    "UOT-RCL w/o relation alignment loss": {"lam": 0.0},
    "UOT-RCL w/o confident set": {"confident": "random"},
}


def _ablation(rows: Mapping[str, Mapping[str, Any]], method: str, model: str, key: str = "method") -> Any:
    def find(row: Mapping[str, str]) -> Wanted | None:
        return Wanted(method, model, rows[row[key]]) if row.get(key) in rows else None

    return find


def _by_name(row: Mapping[str, str]) -> Wanted | None:
    return _method_of(row["method"], row["backbone"])


def _by_batch(row: Mapping[str, str]) -> Wanted | None:
    plain = _method_of(row["method"], row["backbone"])
    options = dict(BATCH_ROWS[row["setting"].removeprefix("batch=")])
    if plain.method != "l2rm":
        options.pop("rho", None)
    return Wanted(plain.method, plain.model, options)


def _omit_model(row: Mapping[str, str]) -> Wanted | None:
    known = row["method"] in OMIT_MODELS and "DSL" not in row["setting"]
    return Wanted("plain", OMIT_MODELS[row["method"]]) if known else None


def _warmup(row: Mapping[str, str]) -> Wanted | None:
    return Wanted("l2rm", "sgr", WARMUP_ROWS[row["setting"].removeprefix("warm-up=")])


def _category(row: Mapping[str, str]) -> Wanted | None:
    return Wanted(CATEGORY_ROWS[row["method"]]) if row["method"] in CATEGORY_ROWS else None


def _nothing(row: Mapping[str, str]) -> Wanted | None:
    return None


FINDERS: dict[tuple[str, str], Any] = {
    **{("L2RM", t): _by_name for t in "12678"},
    ("L2RM", "3"): _ablation(L2RM_ROWS, "l2rm", "sgr"),
    ("L2RM", "4"): _warmup,
    ("L2RM", "9"): _by_batch,
    **{("OMIT", t): _omit_model for t in "12"},
    **{("OMIT", t): _ablation(OMIT_ROWS, "plain", "omit") for t in ("3", "4", "5/B1")},
    **{("REPAIR", t): _by_name for t in ("I", "II", "IV", "V")},
    ("REPAIR", "III"): _ablation(REPAIR_ROWS, "repair", "sgr"),
    ("REPAIR", "VI"): _nothing,
    **{("UOT-RCL", t): _category for t in ("I", "II")},
    ("UOT-RCL", "III"): _nothing,
    ("UOT-RCL", "IV"): _ablation(UOT_ROWS, "uot_rcl", ""),
}


def wanted(layout: Layout, row: Mapping[str, str]) -> Wanted | None:
    """Return the run behind a line of the CSV file; None where there is none (CLIP, NAAF, ...)."""
    found: Wanted | None = FINDERS[layout.paper, layout.table](row)
    return found


def models_named(layout: Layout) -> bool:
    """Return whether the rows of a table are models, so that no other model can stand in for them."""
    return layout.paper == "OMIT"


def measured(layout: Layout, cell: Cell, runs: Runs) -> tuple[float, ...]:
    """Return the values measured on the paper's own data for one printed cell, one per seed.

    Only runs of the preset ``paper`` on that data, with the paper's row, rate and test protocol count; for
    OMIT only where the fragments are regions, as in the data's public files.
    """
    row = cell.source
    run = wanted(layout, row)
    if run is None or DATASETS.get(row["dataset"]) not in runs.datasets:
        return ()
    found = runs.paper_sized.get((DATASETS[row["dataset"]], run.method, run.variant))
    if found is None:
        return ()
    if layout.file == "category_map":
        table = select(found, noise_rate=float(row["noise_rate"]))
        return _values(table, f"map_{row['direction']}")
    if "grid" in row.get("features", "") or row["metric"] == "time_s":
        return ()
    group, size = TESTED[row["protocol"]]
    rate = {"mrate": float(row["noise_rate"])} if row["noise_rate"] else {"mrate": 0.0}
    table = select(found, model=run.model, **rate, test_images=size)
    if rate["mrate"] > 0 and layout.noise:
        table = select(table, protocol=layout.noise)
    return _values(table, group + row["metric"])


def _values(table: pd.DataFrame, column: str) -> tuple[float, ...]:
    return tuple(float(v) for v in table[column].dropna()) if column in table else ()
