"""Files of an audit: tables, keep-lists, columns for other tools, settings."""

from __future__ import annotations

import importlib.util
import io
import json
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import nclib
from nclib.common.files import digest, replacing, write_atomically

if TYPE_CHECKING:
    from nclib.audit.result import Audit

#: Pairs at least this likely to be wrong are not kept.
DROP_FROM = 0.5


def save(audit: Audit, folder: Path) -> Path:
    """Write all files of :meth:`Audit.save`."""
    table = audit.table
    p = table["p_wrong"].to_numpy()
    # Without probabilities nothing is dropped but what cannot be judged.
    keep = table["id"][audit.pairs.usable & ~(p >= DROP_FROM)]
    write_atomically(folder / "pairs.csv", _csv(table))
    if importlib.util.find_spec("pyarrow"):
        with replacing(folder / "pairs.parquet") as file:
            table.to_parquet(file, index=False)
    with replacing(folder / "ids.npy") as file:
        np.save(file, _sorted_ids(keep.tolist()), allow_pickle=False)
    write_atomically(folder / "keep.txt", "".join(f"{i}\n" for i in keep))
    issues = pd.DataFrame(
        {
            "id": table["id"],
            "is_image_caption_issue": p >= DROP_FROM,
            "image_caption_score": 1 - p,
            "is_near_duplicate_issue": (table["image_duplicate_of"] != "")
            | (table["caption_duplicate_of"] != ""),
        }
    )
    write_atomically(folder / "cleanlab.csv", _csv(issues))
    fields = ["id", "image", "caption", "p_wrong", "rank", "reason", "partner_id"]
    samples = table[fields].rename(columns={"image": "filepath"}).to_json(orient="records", force_ascii=False)
    write_atomically(folder / "fiftyone.json", samples + "\n")
    text = json.dumps(_plain(_facts(audit)), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / "audit.json", text + "\n")
    return folder


def _facts(audit: Audit) -> dict[str, Any]:
    kinds = [one["kind"] for one in audit.patterns]
    return {
        "nclib": nclib.__version__,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "pandas": pd.__version__},
        "settings": audit.settings,
        "seed": audit.seed,
        "score": audit.score,
        "pairs": len(audit.pairs),
        "pictures": audit.pairs.n_images,
        "not_judged": len(audit.pairs.problems),
        "share": audit.share._asdict(),
        "assumption": audit.assumption,
        "threshold": audit.curves["threshold"],
        "reliability": audit.curves["reliability"],
        "patterns": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "shifts": [
            {**one, "ids": [one["ids"][0], one["ids"][-1]]}
            for one in audit.patterns
            if one["kind"] == "shift"
        ],
        "sha256": {
            "images": digest(audit.pairs.images),
            "captions": digest(audit.pairs.captions),
            "image_of": digest(audit.pairs.image_of),
            "ids": digest(audit.pairs.ids),
        },
    }


def _csv(table: pd.DataFrame) -> str:
    out = io.StringIO()
    table.to_csv(out, index=False)
    return out.getvalue()


def _sorted_ids(ids: list[str]) -> np.ndarray:
    if ids and all(re.fullmatch("[0-9a-f]{32}", i) for i in ids):
        halves = [(int(i[:16], 16), int(i[16:], 16)) for i in ids]
        return np.sort(np.array(halves, np.dtype("u8,u8")))
    return np.sort(np.array(ids, dtype=np.str_))


def _plain(value: Any) -> Any:
    """Return plain data with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
