"""Recorded runs as one data frame."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nclib.runs.store import stored_records
from nclib.runs.tables import StoredRun

if TYPE_CHECKING:
    import pandas as pd


def table(source: str | Path, task: str = "") -> pd.DataFrame:
    """Read recorded runs into a table, one row per run.

    Parameters
    ----------
    source : path
        A folder of runs, of records or of tables of :func:`nclib.runs.append`; or one of these files.
    task : {"", "pairs", "labels"}
        Keep the runs of one task only.

    Returns
    -------
    DataFrame
        Empty, without columns, where there is no record. A value that a run does not have is missing.
        Columns:

        ``method``, ``mrate``, ``seed``, ...
            The settings, ``noise_rate`` for either task, and for pairs ``networks``, 1 where none is given.
        ``option.*``, ``model.*``, ``data.*``
            Options of the method, of the model, and of the data, with ``data.checksum``.
        ``train_pairs``, ``val_images``, ``test_images``, ...
            Sizes of the data.
        ``rsum``, ``i2t_r1``, ``map_avg``, ...
            Test metrics; all others behind the name of their group, such as ``val.rsum``, ``single.rsum``,
            ``last.map_avg``.
        ``auc``, ``ece``, ...
            Diagnostics of the last training epoch, then ``seconds`` and the other costs.
        ``noise.*``, ``environment.*``
            The noise that was drawn; versions and hardware.
        ``device``, ``best_epoch``, ``remarks``, ``name``, ``path``
            What computed the run; the selected epoch; what keeps it from being what its name says; its name;
            and where its record is, for :func:`nclib.runs.load_record`.

    Raises
    ------
    ValueError
        When there is nothing at this path, for another task, and for a table that was changed or has no
        digest. A record of its own that is damaged is left out of a folder's with a warning.
    """
    return frame_of([row(one) for one in stored_records(source, task)])


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return rows as a data frame whose texts are objects.

    A selection of rows copies them as one block; it copies texts of Arrow column by column.
    """
    import pandas as pd

    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype(dict.fromkeys(frame.select_dtypes("str"), object)).copy()


def row(one: StoredRun) -> dict[str, Any]:
    """Return a record as one row; see :func:`table` for the names."""
    settings, content = one.settings, one.content
    groups = dict(content["metrics"])
    return {
        **({"networks": 1} if one.task == "pairs" else {}),
        **{k: v for k, v in settings.items() if not isinstance(v, Mapping)},
        "noise_rate": settings.get("mrate", settings.get("noise_rate")),
        **_with_prefix("option", settings.get("method_options")),
        **_with_prefix("model", one.naming.get("model_options")),  # without paths
        **_with_prefix("data", one.naming.get("data_options")),
        **{f"data.{k}" if k in ("name", "checksum", "content") else k: v for k, v in content["data"].items()},
        **groups.pop("test"),
        **{k: v for name, group in groups.items() for k, v in _with_prefix(name, group).items()},
        **content["diagnostics"],
        **content["cost"],
        **_with_prefix("noise", content["noise"]),
        **_with_prefix("environment", content["environment"]),
        "files": json.dumps(settings.get("files_sha256", {}), sort_keys=True),
        "device": content["environment"]["device"],
        "best_epoch": content["best_epoch"],
        "remarks": one.remarks,
        "name": content["name"],
        "path": str(one.path),
    }


def _with_prefix(part: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {f"{part}.{name}": value for name, value in (values or {}).items()}
