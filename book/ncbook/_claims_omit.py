"""Claims of OMIT: matching types from recorded runs, properties of the transport computed at once."""

from __future__ import annotations

from collections.abc import Iterable

from ncbook._compare import Difference, spread
from ncbook._evidence import (
    FAILS,
    HOLDS,
    PARTLY,
    Finding,
    best_other,
    compare,
    conclude,
    conditions_of,
    data_of,
    no_record,
    not_above,
    usual,
    within,
)
from ncbook._ledger import judge
from ncbook._live import attention_bound, exact_limit, few_passes, sparser_plans
from ncbook.runs import Runs, select

RIVALS = ("vse", "vse_inf", "pvse", "pcme", "scan", "imram", "saf", "sgr", "sgraf")
WITHOUT_MODEL = ("dataset", "preset", "mrate", "protocol")
INSIDE = 2.0  # standard deviations of the seeds: a smaller spread between settings "matters little"


def _against(runs: Runs, ours: str, theirs: str, value: str = "rsum", digits: int = 1) -> list[Difference]:
    """One matching type minus another; the empty name is the full method."""
    table = select(runs.retrieval, method="plain", model="omit")
    label = f"{_short(ours)} − {_short(theirs)},"
    return compare(table, {"variant": ours}, {"variant": theirs}, value, digits=digits, name=label)


def _short(variant: str) -> str:
    return variant.removeprefix("matching=").removeprefix("marginals=") or "partial_ot"


def _data(runs: Runs) -> str:
    return data_of(select(runs.retrieval, method="plain", model="omit"))


def _missing(*names: str) -> str:
    return f"model omit with {' and '.join(names)}"


@judge("O01")
def highest_rsum(runs: Runs) -> Finding:
    """OMIT against every other similarity model, trained alike."""
    table = select(usual(runs), method="plain")
    found = best_other(table, "model", "omit", RIVALS, conditions=WITHOUT_MODEL, least=3)
    lead = "rSum of omit minus the best other model with the same features"
    return conclude(found, _data(runs), lead=lead, missing="omit and other models, plain training")


@judge("O06")
def most_accurate_module(runs: Runs) -> Finding:
    """Only the matching module differs."""
    table = select(runs.retrieval, method="plain", model="omit")
    others = [f"matching={name}" for name in ("vse", "pem", "cam")]
    found = best_other(table, "variant", "", others, least=len(others))
    return conclude(found, _data(runs), missing=_missing(*others))


@judge("O07")
def beats_global_matching(runs: Runs) -> Finding:
    """Every recall above VSE and PEM, and a longer test."""
    found: list[Difference] = []
    for other in ("matching=vse", "matching=pem"):
        for metric in ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10"):
            found += [_named(d, metric) for d in _against(runs, "", other, metric)]
        found += [_named(d, "test seconds") for d in _against(runs, "", other, "test_seconds", 2)]
    return conclude(found, _data(runs), missing=_missing("matching=vse", "matching=pem"))


@judge("O08")
def beats_cross_attention(runs: Runs) -> Finding:
    """More accurate and faster than cross attention; above zero is better in both."""
    found = _against(runs, "", "matching=cam")
    time = [
        Difference(tuple(-v for v in d.values), f"test seconds saved, {d.name}", digits=2)
        for d in _against(runs, "", "matching=cam", "test_seconds", 2)
    ]
    return conclude([*found, *time], _data(runs), missing=_missing("matching=cam"))


def _named(d: Difference, name: str) -> Difference:
    return Difference(d.values, f"{name}, {d.name}", digits=d.digits)


@judge("O09")
def smaller_lambda_is_better(runs: Runs) -> Finding:
    """Recall against lambda; differences are turned so that above zero favours the smaller lambda."""
    table = select(runs.retrieval, method="plain", model="omit")
    found = []
    for name in sorted({v for v in table.get("variant", ()) if v.startswith("lam=") and "," not in v}):
        sign = -1 if float(name[4:]) > 0.02 else 1
        for d in compare(table, {"variant": name}, {"variant": ""}, name=f"{name} and 0.02,"):
            found.append(Difference(tuple(sign * v for v in d.values), d.name))
    lead = "rSum at the smaller minus rSum at the larger lambda"
    return conclude(found, _data(runs), lead=lead, missing=_missing("other values of lam"))


@judge("O10")
def sparser_with_small_lambda(runs: Runs) -> Finding:
    """Entropy of the plans over lambda."""
    return sparser_plans()


@judge("O11")
def partial_helps_transport(runs: Runs) -> Finding:
    """Partial OT minus naive OT."""
    return conclude(_against(runs, "", "matching=ot"), _data(runs), missing=_missing("matching=ot"))


@judge("O12")
def partial_helps_attention(runs: Runs) -> Finding:
    """Partial CAM minus CAM."""
    found = _against(runs, "matching=partial_cam", "matching=cam")
    return conclude(found, _data(runs), missing=_missing("matching=cam", "matching=partial_cam"))


@judge("O13")
def full_does_not_help(runs: Runs) -> Finding:
    """Global features as ordinary fragments do not help."""
    found = _against(runs, "matching=full", "matching=ot")
    return conclude(
        found, _data(runs), verdict=not_above(found), missing=_missing("matching=full", "matching=ot")
    )


@judge("O14")
def prompt_is_not_better(runs: Runs) -> Finding:
    """Learned dustbins are not clearly better than none."""
    found = _against(runs, "matching=prompt", "matching=ot")
    return conclude(
        found, _data(runs), verdict=not_above(found), missing=_missing("matching=prompt", "matching=ot")
    )


@judge("O15")
def both_directions_gain(runs: Runs) -> Finding:
    """Partial matching improves both directions."""
    found = [
        _named(d, word)
        for word, value in (("image → text", "i2t_sum"), ("text → image", "t2i_sum"))
        for d in _against(runs, "", "matching=ot", value)
    ]
    return conclude(found, _data(runs), missing=_missing("matching=ot"))


def _marginals(runs: Runs, names: Iterable[str]) -> list[tuple[str, dict[str, list[float]]]]:
    """rSum by marginal under every condition in which all of ``names`` have two runs or more."""
    table, found = select(runs.retrieval, method="plain", model="omit"), []
    for at, part in conditions_of(table, ("dataset", "preset", "mrate", "protocol")):
        values = {n: list(select(part, variant=f"marginals={n}" if n else "")["rsum"]) for n in names}
        if all(len(v) > 1 for v in values.values()):
            found.append((at, values))
    return found


@judge("O16")
def marginals_matter_little(runs: Runs) -> Finding:
    """Spread between the four marginals against the spread between seeds."""
    found = _marginals(runs, ("", "intra", "inter", "norm"))
    if not found:
        return no_record(_missing("all four marginals"))
    lines, small = [], []
    for at, values in found:
        means = {n or "uni": sum(v) / len(v) for n, v in values.items()}
        noise = (sum(spread(v) ** 2 for v in values.values()) / len(values)) ** 0.5
        width = max(means.values()) - min(means.values())
        small.append(width <= INSIDE * noise)
        each = ", ".join(f"{n} {m:.1f}" for n, m in means.items())
        lines.append(f"{at}: {each}; widest difference {width:.1f}, standard deviation of seeds {noise:.1f}")
    n = min(len(v) for _, values in found for v in values.values())
    verdict = HOLDS if all(small) else FAILS if not any(small) else PARTLY
    words = f"widest difference at most {INSIDE:g} standard deviations of the seeds; n = {n} is weak"
    return Finding(verdict, f"{'; '.join(lines)}.", n, _data(runs), words)


@judge("O17")
def intra_is_worst(runs: Runs) -> Finding:
    """Every other marginal minus Intra."""
    found = [
        d
        for other in ("", "marginals=inter", "marginals=norm")
        for d in _against(runs, other, "marginals=intra")
    ]
    return conclude(found, _data(runs), missing=_missing("all four marginals"))


@judge("O18")
def uniform_on_par(runs: Runs) -> Finding:
    """Neither Inter nor Norm is clearly better than uniform marginals."""
    found = [d for other in ("inter", "norm") for d in _against(runs, f"marginals={other}", "")]
    return conclude(found, _data(runs), verdict=not_above(found), missing=_missing("marginals=inter, norm"))


@judge("O19")
def low_temperature_hurts(runs: Runs) -> Finding:
    """Learned marginals at a temperature below 1 against 1."""
    table, found = select(runs.retrieval, method="plain", model="omit"), []
    for name in ("intra", "inter"):
        base = f"marginals={name}"
        for low in sorted({v for v in table.get("variant", ()) if v.startswith(f"{base}, model.tau=0")}):
            found += compare(table, {"variant": low}, {"variant": base}, name=f"{low},")
    return conclude(found, _data(runs), want="below", missing=_missing("marginals=intra or inter", "tau < 1"))


@judge("O22")
def three_passes(runs: Runs) -> Finding:
    """Error of the marginals, and order of the scores, after three passes."""
    return few_passes()


@judge("O23")
def upper_bound(runs: Runs) -> Finding:
    """Transport similarity against those of VSE and CAM on the same fragments."""
    return attention_bound()


@judge("O24")
def entropic_becomes_exact(runs: Runs) -> Finding:
    """Cost of the entropic plan against the linear program."""
    return exact_limit()


@judge("O25")
def transport_beats_attention(runs: Runs) -> Finding:
    """Naive OT minus CAM."""
    found = _against(runs, "matching=ot", "matching=cam")
    return conclude(found, _data(runs), missing=_missing("matching=ot", "matching=cam"))


@judge("O27")
def dual_softmax_lifts(runs: Runs) -> Finding:
    """rSum with dual-softmax post-processing minus rSum, OMIT; only the sign can be carried over."""
    found = within(usual(runs), "test_dsl.rsum", "rsum", digits=1, method="plain", model="omit")
    return conclude(found, _data(runs), lead="rSum with − without", missing="model omit")
