"""Tables and figures of the book's chapters, one module per chapter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import means, recorded, show
from ncbook.compare import over_rates, verdicts
from ncbook.runs import as_preset, devices, labelled
from ncbook.training import ONE
from nclib import plots


def against(runs: pd.DataFrame, method: str) -> Markdown:
    """Say at which mismatch rates ``method`` is ahead of each other row of :func:`recorded_rates`."""
    others = sorted(set(runs["label"]) - {method})
    said = {other: verdicts(over_rates(runs, method, other)) for other in others}
    model = runs["model"].iloc[0]
    lines = [f"- against {other}, model `{model}`: {words}" for other, words in said.items() if words]
    head = (
        f"**{method}, seed by seed.** *Ahead* and *behind*: the 95 % interval of the mean "
        "difference excludes zero."
    )
    return Markdown("\n".join([head, "", *lines]))


def recorded_rates(method: str, models: Iterable[str], others: Sequence[str]) -> pd.DataFrame:
    """Return recorded quick runs of a method and others under image-level noise, with a column ``label``.

    Parameters
    ----------
    method : str
    models : iterable of str
        The first of these in which ``method`` was recorded is taken.
    others : sequence of str
        Labels of other methods to take along; plain training is named with its loss.

    Returns
    -------
    DataFrame
        As :func:`ncbook.recorded`; of an ensemble also its networks alone.
    """
    runs = recorded(preset="quick", dataset="emoji", protocol="images")
    have = set(runs.loc[runs["method"] == method, "model"])
    runs = labelled(as_preset(runs[runs["model"] == next(m for m in models if m in have)]))
    alone = runs[runs["method"] == method]
    if alone["single.rsum"].notna().any():
        alone = alone.assign(label=method + ONE, rsum=alone["single.rsum"])
        runs = pd.concat([runs, alone], ignore_index=True)
    return runs[runs["label"].isin([method, method + ONE, *others])]


def recorded_labels(protocol: str = "symmetric") -> pd.DataFrame:
    """Return the recorded quick runs of category retrieval on the bundled data, one row per run.

    ``protocol``, ``symmetric`` or ``asymmetric``, is that of label noise drawn for images and texts apart.
    """
    where = {"preset": "quick", "dataset": "emoji_category", "scope": "modality", "protocol": protocol}
    return recorded("labels", **where)


def rates(runs: pd.DataFrame) -> Figure:
    """Draw runs of :func:`recorded_rates` over the mismatch rate."""
    figure = plots.rates(runs)
    figure.axes[0].set_title(f"model {runs['model'].iloc[0]}")
    return figure


def rate_table(runs: pd.DataFrame) -> Styler:
    """Show mean ± standard deviation (seeds) of rSum, runs of :func:`recorded_rates`, by mismatch rate."""
    table = means(runs, ("model", "label"), "mrate").rename_axis(columns="mismatch rate")
    caption = (
        "Measured, preset quick: rSum on 500 test pictures, mean ± standard deviation (seeds); best epoch on "
        f"the validation pictures; image-level noise drawn with the run's seed; {devices(runs)}"
    )
    return show(table, "recorded", caption)


def gains(
    runs: pd.DataFrame, method: str, by: Sequence[str], among: str = "label", value: str = "rsum"
) -> pd.DataFrame:
    """Return what a method gains over the others with the same seed.

    Parameters
    ----------
    runs : DataFrame
        One row per run, with a column ``seed``.
    method, among : str
        Column that tells the methods apart, and its value whose gains are taken.
    by : sequence of str
        Columns that the compared runs share.
    value : str
        The metric.

    Returns
    -------
    DataFrame
        One row per setting and other method: mean, standard deviation, smallest and largest gain, and seeds.
    """
    table = runs.pivot_table(index=[*by, "seed"], columns=among, values=value)
    gain = table.drop(columns=method).rsub(table[method], axis=0).stack().dropna()
    found = gain.groupby([*by, among]).agg(["mean", "std", "min", "max", "count"])
    found.columns = ["mean gain", "standard deviation", "smallest gain", "largest gain", "seeds"]
    return found
