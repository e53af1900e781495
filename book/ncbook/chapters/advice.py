"""Sentences and tables of the page "Which method should I use?", computed from the recorded runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler

from ncbook import board, show
from ncbook.board import NOISE, ONE, PLACE, TWO, Standing, is_level
from ncbook.compare import Difference, mean_text, paired
from ncbook.notebook import WARMUP
from ncbook.runs import BUNDLED, Runs, select
from nclib.methods.base import METHODS

LEAST = 4  # methods from which a place can advise
Condition = tuple[float, Standing]


def places(
    table: pd.DataFrame, task: str = "pairs", *, marked: bool = False
) -> list[tuple[dict[str, str], pd.DataFrame]]:
    """Return the places with at least four methods at some rate, photographs first.

    Parameters
    ----------
    table : DataFrame
        From :func:`ncbook.board.scored`.
    task : {"pairs", "labels"}
    marked : bool
        Keep the rows that are not ranked, see :func:`ncbook.board.is_marked`.
    """
    found = []
    for key, part in table[table["task"] == task].groupby(PLACE):
        if part.groupby(NOISE)["label"].nunique().max() >= LEAST:
            kept = part if marked else part[~board.is_marked(part)]
            found.append((dict(zip(PLACE, map(str, key), strict=True)), kept))
    return sorted(found, key=lambda item: (item[0]["dataset"] in BUNDLED, -len(item[1])))


def name_of(place: Mapping[str, str]) -> str:
    """Return the words for a place: data, and the model where there is one."""
    model = f", model {place['model']}" if place["model"] else ""
    return f"{board.data_name(place['dataset'])}{model}"


def _conditions(part: pd.DataFrame, networks: str = ONE) -> dict[str, list[Condition]]:
    """Return the standings of one place by protocol, in the order of the rates."""
    found: dict[str, list[Condition]] = {}
    for where, rate, standing in board.standings(part, networks):
        found.setdefault(where["protocol"], []).append((rate, standing))
    return dict(sorted(found.items(), key=lambda item: item[0] == "captions"))


def code(label: str) -> str:
    """Return a label as code in Markdown."""
    return f"`{label}`"


def listed(labels: Sequence[str]) -> str:
    """Return labels as an enumeration in Markdown.

    Examples
    --------
    >>> listed(["l2rm", "rcl", "ncr"])
    '`l2rm`, `rcl` and `ncr`'
    """
    words = [code(label) for label in labels]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def best_sentence(conditions: Sequence[Condition], task: str = "pairs") -> str:
    """Say who is best in mean at which rates, with its values, and who is level with it.

    Conditions with one seed of each method are named and not ranked.
    """
    digits = board.METRICS[task][1]
    several = [(rate, s) for rate, s in conditions if len(s.means[s.best]) > 1]
    single = [rate for rate, s in conditions if len(s.means[s.best]) == 1]
    winners: dict[str, list[Condition]] = {}
    for rate, standing in several:
        winners.setdefault(standing.best, []).append((rate, standing))
    parts = []
    for label, won in sorted(winners.items(), key=lambda item: (-len(item[1]), item[1][0][0])):
        rates = board.rate_text([rate for rate, _ in won])
        values = ", ".join(mean_text(s.means[label], digits, count=False) for _, s in won)
        level: dict[str, list[float]] = {}
        for rate, standing in won:
            for other in standing.level:
                level.setdefault(other, []).append(rate)
        near = [f"{code(other)} at {board.rate_text(at)}" for other, at in level.items()]
        rest = f"level with it: {', '.join(near)}" if near else "nothing is level with it"
        if not any(standing.behind for _, standing in won):
            rest = "nothing else has several seeds"
        parts.append(f"at {rates} {code(label)} is best in mean ({values}); {rest}")
    if single:
        parts.append(f"at {board.rate_text(single)} there is one seed of each, which ranks nothing")
    return "; ".join(parts) + "."


def against_single(part: pd.DataFrame, protocol: str) -> list[tuple[float, str, Difference]]:
    """Return per rate the best ensemble of two networks and its difference to the best single network."""
    rows = part[part["protocol"] == protocol]
    found = []
    ones, twos = (dict(_conditions(rows, kind).get(protocol, [])) for kind in (ONE, TWO))
    for rate in sorted(ones.keys() & twos.keys()):
        at = rows[rows["rate"] == rate]
        best, single = twos[rate].best, ones[rate].best
        two = at[(at["label"] == best) & (at["networks"] == TWO)]
        one = at[(at["label"] == single) & (at["networks"] == ONE)]
        found.append((rate, best, paired(two, one, "value", name=f"{best} - {single}")))
    return found


def _compared(rows: Iterable[tuple[float, str, Difference]]) -> str:
    parts = []
    for rate, label, d in rows:
        said = "one seed" if d.n < 2 else "level" if is_level(d) else "ahead" if d.mean > 0 else "behind"
        parts.append(
            f"{code(label)} {d.mean:+.1f} at {rate:g} ({said})" if d.n else f"{code(label)} at {rate:g}"
        )
    return ", ".join(parts)


def brief(table: pd.DataFrame) -> str:
    """Return the advice in Markdown: one list item for each place and kind of noise, photographs first."""
    lines = []
    for place, part in places(table):
        for protocol, conditions in _conditions(part).items():
            head = f"**{name_of(place)}, {board.noise_name(protocol)}, one network**"
            lines.append(f"- {head}: {best_sentence(conditions)}")
            two = against_single(part, protocol)
            if two:
                lines.append(
                    f"- *The same with two networks*, against the best single one: {_compared(two)}."
                )
    left_out = []
    for place, part in places(table, marked=True):
        for protocol, rows in part[board.is_marked(part)].groupby("protocol"):
            rates = {k: board.rate_text(sorted(set(own["rate"]))) for k, own in rows.groupby("label")}
            said = ", ".join(f"{code(str(label))} at {at}" for label, at in rates.items())
            left_out.append(f"{name_of(place)}, {board.noise_name(str(protocol))}: {said}")
    if left_out:
        lines.append(
            "- **Not ranked**, since a run was tested at an epoch of its warm-up or a network took no step: "
            f"{'; '.join(left_out)}."
        )
    return "\n".join(lines) or "No records here."


def at_rate(table: pd.DataFrame, rate: float) -> str:
    """Return who is best at one rate, in Markdown: a list item for each place and kind of noise."""
    lines = []
    for place, part in places(table):
        near = part[(part["rate"] - rate).abs() < 1e-9]
        for protocol, conditions in _conditions(near).items():
            ((_, standing),) = conditions
            head = f"**{name_of(place)}, {board.noise_name(protocol)}, rate {rate:g}**"
            if len(standing.means[standing.best]) == 1:
                each = ", ".join(f"{code(k)} {v[0]:.1f}" for k, v in standing.means.items())
                lines.append(f"- {head}: one seed each, not ranked; rSum {each}.")
                continue
            top = mean_text(standing.means[standing.best], count=True)
            level = (
                f"; level with it: {listed(standing.level)}"
                if standing.level
                else "; nothing is level with it"
            )
            two = _compared(against_single(near, protocol))
            two = f". Best of two networks, against it: {two}" if two else ""
            single = f"; one seed, not ranked: {listed(standing.single)}" if standing.single else ""
            lines.append(f"- {head}: {code(standing.best)}, rSum {top}{level}{single}{two}.")
    return "\n".join(lines) or f"No records at rate {rate:g} here."


def regrets(part: pd.DataFrame, protocol: str = "images", networks: str = ONE) -> pd.DataFrame:
    """Return how far methods lie behind the best single network over all rates of a place.

    Parameters
    ----------
    part : DataFrame
        Rows of one place.
    protocol, networks : str
        Noise, and the number of networks of the methods that are judged.

    Returns
    -------
    DataFrame
        By label, smallest ``worst`` first: ``worst``, the largest mean difference over the rates, ``at``, its
        rate, and ``mean``. Only methods with two seeds at every rate at which a best is known.
    """
    rows = part[part["protocol"] == protocol]
    best = dict(_conditions(rows).get(protocol, []))
    found = []
    for label, own in rows[rows["networks"] == networks].groupby("label"):
        gaps = {}
        for rate, standing in best.items():
            at = rows[rows["rate"] == rate]
            top = at[(at["label"] == standing.best) & (at["networks"] == ONE)]
            gap = paired(top, own[own["rate"] == rate], "value")
            if gap.n > 1:
                gaps[rate] = gap.mean
        if len(gaps) == len(best) > 1:
            worst = max(gaps, key=lambda r: gaps[r])
            row = {"label": label, "worst": gaps[worst], "at": worst, "mean": sum(gaps.values()) / len(gaps)}
            found.append(row)
    frame = pd.DataFrame(found, columns=["label", "worst", "at", "mean"])
    return frame.sort_values("worst").set_index("label")


def unknown_rate(table: pd.DataFrame) -> str:
    """Say which single network loses least when the rate is not known, for each place with several rates."""
    lines = []
    for place, part in places(table):
        found = regrets(part)
        if len(found) > 1:
            first, second = found.iloc[0], found.iloc[1]
            rows = part[part["protocol"] == "images"]
            rates = board.rate_text(sorted(set(rows["rate"])))
            missing = sorted(set(rows.loc[rows["networks"] == ONE, "label"]) - set(found.index))
            known = (
                f" Not compared, since not ranked with two seeds at every rate: {listed(missing)}."
                if missing
                else ""
            )
            lines.append(
                f"- **{name_of(place)}, rates {rates}**: of {len(found)} methods, {code(found.index[0])} "
                f"{_furthest(first)}; next is {code(found.index[1])}, which {_furthest(second)}.{known}"
            )
    return "\n".join(lines) or "No records here."


def _furthest(row: pd.Series[float]) -> str:
    """Say how far one row of :func:`regrets` lies behind the best at its worst rate."""
    if row["worst"] < 0.05:
        return "is the best single network at every rate"
    return f"is at most {row['worst']:.1f} behind the best (at rate {row['at']:g})"


def regret_table(table: pd.DataFrame) -> Styler | None:
    """Show the largest and the mean distance to the best single network, by method and place."""
    columns: dict[tuple[str, str], dict[str, str]] = {}
    for place, part in places(table):
        parts = [
            regrets(part, networks=ONE),
            regrets(part, networks=TWO).rename(lambda s: f"{s} (two networks)"),
        ]
        for label, row in pd.concat([p for p in parts if len(p)] or parts[:1]).iterrows():
            columns.setdefault((name_of(place), "worst, at rate"), {})[str(label)] = (
                f"{row['worst']:.1f} at {row['at']:g}"
            )
            columns.setdefault((name_of(place), "mean"), {})[str(label)] = f"{row['mean']:.1f}"
    if not columns:
        return None
    caption = (
        "Measured: distance of rSum to the best single network at the same rate, images exchanged, runs with "
        "the same seed; the largest one over the rates, and their mean. Negative: ahead of it. "
        "Methods with at least two seeds at every rate"
    )
    return show(pd.DataFrame(columns), "regret", caption, missing="–")


def choice_table(table: pd.DataFrame) -> Styler | None:
    """Show the best method by place, noise and rate: one network, what is level with it, two networks."""
    rows = []
    for place, part in places(table):
        for protocol, conditions in _conditions(part).items():
            two = {rate: (label, d) for rate, label, d in against_single(part, protocol)}
            for rate, s in conditions:
                if len(s.means[s.best]) == 1:
                    continue
                label, d = two.get(rate, ("–", Difference(())))
                mark = " =" if is_level(d) else ", one seed" if d.n == 1 else ""
                rows.append(
                    {
                        ("", "data"): name_of(place),
                        ("", "noise"): board.noise_name(protocol).split()[0],
                        ("", "rate"): f"{rate:g}",
                        ("one network", "best in mean"): s.best,
                        ("one network", "rSum"): mean_text(s.means[s.best], count=False),
                        ("one network", "level with it"): ", ".join(s.level) or "–",
                        ("two networks", "best in mean"): label,
                        ("two networks", "against one"): f"{d.mean:+.1f}{mark}" if d.n else "–",
                    }
                )
    if not rows:
        return None
    caption = (
        "Measured: rSum at the selected epoch, mean ± standard deviation over the seeds. Level, =: the 95 % "
        "interval of the mean difference between runs with the same seed holds 0"
    )
    frame = pd.DataFrame(rows)
    frame.columns = pd.MultiIndex.from_tuples(frame.columns)
    return show(frame, "choice", caption, index=False)


# -- budget ----------------------------------------------------------------------------------------------


def needs() -> pd.DataFrame:
    """Return what a method needs beside the pairs: ``networks``, and ``clean``, a share of the pairs."""
    found = {n: (METHODS[n].factory.n_networks, METHODS[n].factory.clean_share) for n in METHODS}
    return pd.DataFrame.from_dict(found, orient="index", columns=["networks", "clean"])


def relative_cost(part: pd.DataFrame) -> pd.Series:
    """Return the time of training over that of plain training (triplet), by label: median of equal runs."""
    whole = part[part["networks"] != board.ALONE]
    seconds = whole.pivot_table(index=[*NOISE, "seed"], columns="label", values="seconds")
    if "plain (triplet)" not in seconds:
        return pd.Series(dtype=float)
    return seconds.div(seconds["plain (triplet)"], axis=0).median().dropna()


def cost_table(table: pd.DataFrame) -> Styler | None:
    """Show networks, clean pairs and relative time of every recorded method."""
    columns = {name_of(place): relative_cost(part) for place, part in places(table)}
    frame = pd.DataFrame({k: v for k, v in columns.items() if len(v)})
    if frame.empty:
        return None
    facts = needs()
    method = frame.index.map(lambda label: label.removesuffix(board.AVERAGED).split(" (")[0])
    apart = frame.index.str.endswith(board.AVERAGED)
    frame.insert(
        0, "networks", np.where(apart, "2 apart", [str(facts["networks"].get(m, "")) for m in method])
    )
    clean = [facts["clean"].get(m, 0.0) for m in method]
    frame.insert(1, "known clean pairs", [f"{share:.0%}" if share else "none" for share in clean])
    caption = (
        "Seconds of training over those of plain training with the triplet loss: median over runs with the "
        "same noise and seed. The machine had other load: values within a third of each other are equal, and "
        "a value below 1 does not mean a saving"
    )
    return show(frame.sort_values(frame.columns[2]).rename_axis(None), "cost", caption, digits=1, missing="–")


def clean_subset(table: pd.DataFrame) -> str:
    """Say what the methods that need known clean pairs gain from them, for each place."""
    facts = needs()
    lines = []
    for name, row in facts[facts["clean"] > 0].iterrows():
        said = []
        for place, part in places(table):
            kinds = part[part["label"] == name]["networks"]
            kind = TWO if (kinds == TWO).any() else ONE
            own = part[(part["label"] == name) & (part["networks"] == kind)]
            for (protocol, rate), rows in own.groupby(NOISE):
                at = part[(part["protocol"] == protocol) & (part["rate"] == rate)]
                others = at[~at["method"].isin(facts.index[facts["clean"] > 0])]
                top = board.standing(others[others["networks"] == kind])
                if top is None:
                    continue
                best = others[(others["label"] == top.best) & (others["networks"] == kind)]
                d = paired(rows, best, "value")
                if d.n > 1:
                    said.append((name_of(place), protocol, float(rate), is_level(d), d.mean))
        ahead = sum(not level and mean > 0 for *_, level, mean in said)
        level = sum(level for *_, level, _ in said)
        lines.append(
            f"- {code(str(name))} needs known clean pairs, {row['clean']:.0%} of the training pairs, and "
            f"{row['networks']:.0f} network{'s' if row['networks'] > 1 else ''}. Against the best method of "
            f"as many networks without them it is ahead in {ahead}, level in {level} and behind in "
            f"{len(said) - ahead - level} of {len(said)} recorded conditions with two seeds."
        )
    return "\n".join(lines) or "No recorded method needs known clean pairs."


def two_networks(table: pd.DataFrame) -> str:
    """Say how often the mean of two networks is ahead of one, and one of them of the best single one."""
    counts = {"whole": [0, 0], "alone": [0, 0]}
    for _, part in places(table):
        for noise, at in part.groupby(NOISE):
            del noise
            top = board.standing(at[at["networks"] == ONE])
            for label in sorted(set(at.loc[at["networks"] == TWO, "label"])):
                own = at[at["label"] == label]
                alone = own[own["networks"] == board.ALONE]
                pairs = {"whole": (own[own["networks"] == TWO], alone)}
                if top:
                    pairs["alone"] = (alone, at[(at["label"] == top.best) & (at["networks"] == ONE)])
                for name, (ours, theirs) in pairs.items():
                    d = paired(ours, theirs, "value")
                    if d.n > 1:
                        counts[name][0] += d.mean > 0 and not is_level(d)
                        counts[name][1] += 1
    (ahead, of), (alone_ahead, alone_of) = counts["whole"], counts["alone"]
    if not of:
        return "No records here."
    twos = set(table.loc[table["networks"] == TWO, "label"])
    times = [s for _, part in places(table) for label, s in relative_cost(part).items() if label in twos]
    return (
        f"- The mean of two networks is ahead of one of them in {ahead} of {of} recorded conditions.\n"
        f"- One of two networks alone is ahead of the best single network in {alone_ahead} of {alone_of}."
        + (
            f"\n- Training two networks took {min(times):.1f} to {max(times):.1f} times as long as plain "
            f"training (median {median(times):.1f}; {len(times)} methods by data and model). The records "
            "were made beside other work, so that a single ratio is uncertain."
            if times
            else ""
        )
    )


# -- size of the data, kind of noise ---------------------------------------------------------------------


def sizes(table: pd.DataFrame) -> str:
    """Say on how many pairs the runs were made, and whether the order of the methods agrees between them.

    The order is that of means of at least two seeds.
    """
    found = places(table)
    lines = []
    for place, part in found:
        pairs = ", ".join(f"{n:,.0f}" for n in sorted(set(part["train_pairs"].dropna()))) or "unknown"
        lines.append(f"- **{name_of(place)}**: {pairs} training pairs.")
    for i, (first, a) in enumerate(found):
        for second, b in found[i + 1 :]:
            shared = []
            for noise in sorted(set(zip(a["protocol"], a["rate"], strict=True))):
                means = [
                    p[(p["protocol"] == noise[0]) & (p["rate"] == noise[1]) & (p["networks"] != board.ALONE)]
                    .groupby("label")["value"]
                    .agg(lambda values: values.mean() if len(values) > 1 else float("nan"))
                    .dropna()
                    for p in (a, b)
                ]
                both = pd.concat(means, axis=1, join="inner")
                if len(both) >= LEAST:
                    agreement = both.corr("spearman").iloc[0, 1]
                    shared.append(f"{agreement:+.2f} at {noise[0]} {noise[1]:g} ({len(both)} methods)")
            if shared:
                names = f"{name_of(first)} and {name_of(second)}"
                lines.append(
                    f"- **The order on {names}**, rank correlation of the means of two or more seeds: "
                    f"{', '.join(shared)}."
                )
    return "\n".join(lines) or "No records here."


def kinds_of_noise(table: pd.DataFrame) -> str:
    """Say what a method loses or gains when single captions are exchanged in place of whole images."""
    lines = []
    for place, part in places(table):
        rates = [set(part.loc[part["protocol"] == p, "rate"]) for p in ("images", "captions")]
        for rate in sorted(rates[0] & rates[1]):
            at = part[(part["rate"] == rate) & (part["networks"] != board.ALONE)]
            gaps = {
                str(label): paired(
                    own[own["protocol"] == "captions"], own[own["protocol"] == "images"], "value"
                )
                for label, own in at.groupby("label")
            }
            known = {label: d for label, d in gaps.items() if d.n > 1}
            easier = sorted((k for k, d in known.items() if d.mean > 0), key=lambda k: -known[k].mean)
            harder = [k for k in known if k not in easier]
            tops = [
                board.standing(at[(at["protocol"] == p) & (at["networks"] == ONE)])
                for p in ("images", "captions")
            ]
            if not easier + harder or None in tops:
                continue
            said = f"{len(easier)} of {len(known)} methods reach more when captions move one by one"
            if easier:
                said += f", most of all {code(easier[0])} ({known[easier[0]].mean:+.1f})"
            if harder:
                said += f"; less: {', '.join(f'{code(k)} ({known[k].mean:+.1f})' for k in harder)}"
            best = [t.best for t in tops if t]
            same = (
                f"{code(best[0])} is best under both"
                if best[0] == best[1]
                else (f"best of one network: {code(best[0])} for images, {code(best[1])} for captions")
            )
            lines.append(f"- **{name_of(place)}, rate {rate:g}**: {said}; {same}.")
    return "\n".join(lines) or "No records of both kinds here."


def labels_brief(table: pd.DataFrame) -> str:
    """Return who is best in category retrieval with wrong labels, in Markdown."""
    lines = []
    for place, part in places(table, "labels"):
        for protocol, conditions in _conditions(part).items():
            head = f"**{name_of(place)}, {board.noise_name(protocol)}**"
            lines.append(f"- {head}: {best_sentence(conditions, 'labels')}")
    return "\n".join(lines) or "No records here."


# -- one question ----------------------------------------------------------------------------------------


def l2rm_and_infonce(runs: Runs) -> str:
    """Say where L2RM is ahead of undefended InfoNCE or behind it, and what longer training changes."""
    lines = []
    table = runs.retrieval
    usual = board.scored(runs)
    for place, part in places(usual, marked=True):
        for protocol in sorted(set(part["protocol"]), reverse=True):
            early = "not ranked, since a run was tested in its warm-up,"
            said: dict[str, list[str]] = {"ahead": [], "behind": [], "level": [], early: []}
            for rate, at in part[part["protocol"] == protocol].groupby("rate"):
                own = at[at["label"] == "l2rm"]
                d = paired(own, at[at["label"] == "plain (infonce)"], "value")
                if d.n > 1:
                    word = "level" if is_level(d) else "ahead" if d.mean > 0 else "behind"
                    dagger = own["early"].any()
                    said[early if dagger else word].append(
                        f"{rate:g} ({d.mean:+.1f}{f' {WARMUP}' if dagger else ''})"
                    )
            words = [f"{word} at {', '.join(at)}" for word, at in said.items() if at]
            if words:
                lines.append(
                    f"- **{name_of(place)}, {board.noise_name(protocol)}**: L2RM is {'; '.join(words)}."
                )
    if table.empty:
        return "No records here."
    longer = table[table["variant"].str.contains("epochs=") & table["method"].isin(["l2rm", "plain"])]
    for (dataset, model, rate), part in longer.groupby(["dataset", "model", "mrate"]):
        ours, theirs = part[part["method"] == "l2rm"], part[part["option.loss"] == "infonce"]
        d = paired(ours, theirs)
        before = [
            select(table, dataset=dataset, model=model, mrate=rate, method=m) for m in ("l2rm", "plain")
        ]
        short = paired(
            before[0][before[0]["variant"] == ""],
            before[1][
                before[1]["variant"].isin(["", "loss=infonce"]) & (before[1]["option.loss"] == "infonce")
            ],
        )
        if d.n and short.n:
            total = (
                int(f["warmup_epochs"].iloc[0] + f["epochs"].iloc[0])
                for f in (before[0][before[0]["variant"] == ""], ours)
            )
            few, many = total
            lines.append(
                f"- **Longer training, {board.data_name(dataset)}, model {model}, rate {rate:g}**: L2RM "
                f"minus InfoNCE is {short.mean:+.1f} after {few} epochs ({short.n} seeds) and {d.mean:+.1f} "
                f"after {many} ({d.n} seeds)."
            )
    return "\n".join(lines) or "No records here."
