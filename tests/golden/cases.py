"""The entries of the golden runs: methods with their options, models, solvers, mixtures and draws."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from golden import LATER, PAIRS, SOLVED, Trace, labels, pairs, train
from torch import Tensor

import nclib
from nclib import evaluation, losses, noise, ot
from nclib.models.registry import MODELS as REGISTRY

Entry = Callable[[Trace], None]

# Options of methods that change what is computed; an entry each, from the first weights on.
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "plain": (
        *({"loss": x} for x in ("infonce", "infonce_rce", "gce", "rince")),
        {"loss": "gce", "filter": "linear", "data_options": {"n_train": 80}},
    ),
    "ncr": ({"loss": "gce"},),
    "sps": ({"loss": "gce"}, {"loss": "triplet"}),
    "linear": ({"filter": False},),
    "rcl": tuple({"loss": x} for x in ("tan", "abs", "exp", "gce")),
    "l2rm": (
        *({"rematch": x} for x in ("kl", "infonce")),
        {"cost": "cosine", "stop": "accurate"},
        {"mask": False},
    ),
    "mscn": ({"lookahead_every": 2},),
    "cream": ({"mined_gradient": True}, {"loss": "gce"}, {"loss": "triplet"}),
    "gsc_plus": ({"model": "sgr"}, {"loss": "triplet"}),
    "crank": ({"select": "none", "loss": "gce"},),
    "repair": (
        *({"replace": x} for x in ("image", "text")),
        *({"variant": x} for x in ("rc+drop", "hard+drop", "hard")),
        {"bank_precision": "bf16"},
    ),
    "uot_rcl": (
        {"confident": "random"},
        {"consistency": "off"},
        *({"plc": x} for x in ("ce", "off")),
        {"label_loss": "bounded"},
        {"lam": 0.0},
        *({"relation": x} for x in ("instance", "mrl")),
    ),
    "acmr": ({"widths": "nuswide"},),
    "gma": ({"alpha": 0.5}, {"components": 2}),
    "mcca": ({"components": 2},),
}
# What a method needs besides the general values: in every entry, and in those that begin with training.
ALWAYS: dict[str, dict[str, Any]] = {
    "crcl": {"epochs": 5, "schedules": 2, "schedule_epochs": 2},
    "mscn": {"threshold": 0.0},  # near a threshold, rounding decides which of so few pairs train
    "pcsr": {"classes": 8},
    # One caption an image: equal pictures in a bank have equal distances, whose order is rounding.
    "repair": {"bank_size": 16, "K": 4, "data_options": {"n_train": 80, "captions_per_image": 1}},
    "in2r": {"queue": 32, "data_options": {"n_train": 80, "captions_per_image": 1}},
    "uot_rcl": {"warmup_epochs": 1, "epochs": 3, "pool": 64, "gamma": 0.9},
}
AT_ONCE: dict[str, dict[str, Any]] = {
    "crank": {"select": "none"},
    "crank_plus": {"select": "none"},
    "crcl": {"epochs": 3, "schedules": 2, "schedule_epochs": 1},
    "uot_rcl": {"warmup_epochs": 0, "epochs": 1},
}
MODELS: dict[str, tuple[dict[str, Any], ...]] = {
    "scan": ({"direction": "i2t"}, *({"pooling": x} for x in ("mean", "max", "sum"))),
    "imram": ({"branch": "text"}, {"branch": "image"}),
    "omit": (
        *({"matching": x} for x in ("vse", "pem", "cam", "partial_cam", "ot", "full", "prompt")),
        *({"marginals": x} for x in ("intra", "inter", "norm")),
        {"sinkhorn": "log"},
        {"image_encoder": "linear", "image_global": "first"},
        {"features": "grid"},
    ),
    "vse": ({"region_pool": "max"}, {"word_pool": "last"}),
    "vse_inf": ({"norm_over": "padded"},),
}
RUNS: dict[str, dict[str, Any]] = {
    "clipped": {"grad_clip": 0.5},
    "amsgrad": {"optimizer": "amsgrad"},
    "decayed": {"weight_decay": 0.1, "decay_every": 1, "decay_again": 2, "epochs": 3},
    "cosine": {"decay": "cosine", "decay_every": 2, "epochs": 3},
    "half": {"precision": "bf16"},
    "captions": {"protocol": "captions"},
    "whole pairs": {"protocol": "pairs"},
}


def at_once(method: str, **values: Any) -> dict[str, Any]:
    """Return values of a run on pairs that begins with the steps of training."""
    return {"warmup_epochs": 0, "epochs": 1, **ALWAYS.get(method, {}), **AT_ONCE.get(method, {}), **values}


def named(values: Mapping[str, Any]) -> str:
    """Return options as words of a name."""
    return " ".join(f"{k}={v}" for k, v in values.items())


def entries() -> dict[str, Entry]:
    """Return every entry by its name; the first two words say what it guards."""
    found: dict[str, Entry] = {}
    for method in nclib.methods.available():
        if issubclass(nclib.methods.METHODS[method].factory, nclib.methods.ClosedForm):
            for own in ({}, *VARIANTS.get(method, ())):
                found[f"method {method} {named(own)}".strip()] = fitted_pairs(method, **own)
            continue
        found[f"method {method}"] = pairs(method, **ALWAYS.get(method, {}))
        for own in ({}, *VARIANTS.get(method, ())):
            found[f"method {method} {named(own) or 'at once'}"] = pairs(method, **at_once(method, **own))
    for method in nclib.label_noise.available():
        if issubclass(type(nclib.label_noise.build(method)), nclib.label_noise.Projector):
            found[f"method {method}"] = closed_form(method)
            for own in VARIANTS.get(method, ()):
                found[f"method {method} {named(own)}"] = closed_form(method, **own)
            continue
        always = ALWAYS.get(method, {})
        found[f"method {method}"] = labels(method, **always)
        first = {**always, "epochs": 1, **AT_ONCE.get(method, {})}
        if method in AT_ONCE:
            found[f"method {method} at once"] = labels(method, **first)
        for own in VARIANTS.get(method, ()):
            found[f"method {method} {named(own)}"] = labels(method, **{**first, **own})
    own = [name for name in REGISTRY if REGISTRY[name].factory.__module__.startswith("nclib.")]
    found |= of_models(own, MODELS)
    found |= {f"run {name}": pairs("plain", **{**values}) for name, values in RUNS.items()}
    asymmetric = labels("deep_sm", protocol="asymmetric", scope="pair", lr_schedule="constant")
    return found | {"run asymmetric": asymmetric} | OTHERS


# --------------------------------------------------------------------------------- models, closed forms


def of_models(models: Iterable[str], variants: Mapping[str, Iterable[dict[str, Any]]]) -> dict[str, Entry]:
    """Return the entries of some models, with their usual options and with variants of these."""
    each = [(model, own) for model in models for own in ({}, *variants.get(model, ()))]
    return {f"model {model} {named(own)}".strip(): of_model(model, own) for model, own in each}


def of_model(model: str, own: Mapping[str, Any]) -> Entry:
    """Return an entry: two steps of plain training, and the similarities of new weights on a split."""
    given = {**({} if model in ("bow", "clip") else {"embed_dim": 16, "word_dim": 8, "sim_dim": 8}), **own}
    given |= {"clip": {"width": 64, "embed_dim": 16, "layers": 1}, "bow": {"embed_dim": 16}}.get(model, {})
    train = pairs("plain", model=model, loss="infonce", model_options=given, **at_once("plain"))

    def entry(trace: Trace) -> None:
        train(trace)
        dataset = nclib.data.load("planted", n_train=2, n_val=6, n_test=2, regions=6, feature_dim=16)
        torch.manual_seed(5)
        sizes = {"feature_dim": 16, "vocab_size": dataset.vocabulary.size, "n_regions": 6}
        network = nclib.models.build(model, **sizes, **given)
        trace.add("weights", torch.cat([p.detach().flatten() for p in network.parameters()]))
        trace.add("similarity", nclib.models.similarity_matrix(network, dataset.val))
        trace.add("logits", nclib.models.similarity_matrix(network, dataset.val, logits=True))

    return entry


def fitted_pairs(method: str, **own: Any) -> Entry:
    """Return an entry: a fit to planted pairs, and the similarities of another split, in float64."""
    sizes = {**PAIRS["data_options"], "n_train": 80}
    given = {"dataset": "planted", "mrate": 0.4, "data_options": sizes, **own}

    def entry(trace: Trace) -> None:
        train(trace, method, type(nclib.methods.build(method)), **given)
        with tempfile.TemporaryDirectory() as out:
            record = nclib.run(method, **given, threads=1, device="cpu", out=out, progress=False)
            opened = nclib.open_run(record)
        network, val = opened.trainer.networks[0], opened.dataset.val
        with torch.no_grad():
            images = network.encode_images(val.features(range(val.n_images)))
            captions = network.encode_captions(val.captions.batch(range(val.n_captions)))
        trace.add("similarity", images.vectors @ captions.vectors.T, SOLVED)

    return entry


def closed_form(method: str, **own: Any) -> Entry:
    """Return an entry: a fit, and cosines of what it projects, which do not depend on signs of directions."""
    train = labels(method, **own)

    def entry(trace: Trace) -> None:
        train(trace)
        sizes = {"n_train": 90, "n_val": 2, "n_test": 2, "n_classes": 4, "image_dim": 16, "text_dim": 16}
        split = nclib.data.load("planted_category", **sizes).train
        images, texts = torch.as_tensor(split.images), torch.as_tensor(split.texts)
        given = torch.as_tensor(noise.symmetric_labels(split.labels, 0.3, n_classes=4, seed=3))
        built = nclib.label_noise.build(method, **own)
        built.fit(nclib.label_noise.Training(images, texts, given, given, 4), lambda: 0.5)
        v, t = built.project_images(images[:20]), built.project_texts(texts[:20])
        for name, product in (("images", v @ v.T), ("texts", t @ t.T), ("across", v @ t.T)):
            trace.add(f"products {name}", product)

    return entry


# ------------------------------------------------------------------------------------------------- solvers


def waves(*shape: int, a: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return fixed numbers in [-1, 1] without order."""
    i = torch.arange(1, 1 + int(np.prod(shape)), dtype=torch.float64)
    return torch.sin(1.3 * i * i + 0.7 * i + a).reshape(shape).to(dtype)


def shares(*shape: int, a: float = 0.0) -> Tensor:
    """Return fixed weights with sum 1 along the last axis."""
    x = 1.5 + waves(*shape, a=a)
    return x / x.sum(-1, keepdim=True)


def note_transport(trace: Trace, name: str, t: ot.Transport, tolerance: float = SOLVED) -> None:
    """Add plan, value and mass, and what the certificate says where there are potentials."""
    for part in ("plan", "value", "mass"):
        trace.add(f"{name} {part}", getattr(t, part), tolerance)
    trace.add(f"{name} converged", t.converged.double(), tolerance)
    if t.potentials is not None:
        evidence = t.certify(exact=t.plan.dtype == torch.float64)
        for part in ("value", "objective", "dual_bound", "linear_bound", "linear_optimum"):
            if (x := getattr(evidence, part)) is not None:
                trace.add(f"{name} certificate {part}", x, tolerance)


def through(trace: Trace, name: str, solve: Callable[[Tensor], Any], cost: Tensor, tolerance: float) -> None:
    """Add the gradient of a weighted sum of a plan."""
    cost = cost.clone().requires_grad_()
    found = solve(cost)
    plan = getattr(found, "plan", found)
    (plan * waves(*plan.shape, a=2.0, dtype=plan.dtype)).sum().backward()
    assert cost.grad is not None
    trace.add(f"{name} gradient", cost.grad, tolerance)


COST, MASK = waves(3, 7, 5, a=0.5) + 1.0, waves(3, 7, 5, a=1.5) > -0.6
P, Q = shares(3, 7), shares(3, 5, a=1.0)


def sinkhorn(trace: Trace) -> None:
    for reg in (0.02, 0.5):
        note_transport(trace, f"reg {reg}", ot.sinkhorn(COST, reg=reg))
        note_transport(trace, f"reg {reg} weights", ot.sinkhorn(COST, P, Q, reg=reg))
        solve = partial(ot.sinkhorn, p=P, q=Q, reg=reg, gradient="implicit")
        through(trace, f"reg {reg}", solve, COST, SOLVED)
    note_transport(trace, "mask", ot.sinkhorn(COST, reg=0.1, mask=MASK))
    note_transport(trace, "float32", ot.sinkhorn(COST.float(), P, Q, reg=0.1), LATER)
    note_transport(trace, "log", ot.sinkhorn(COST, P, Q, reg=0.005, method="log"))


def partial_sinkhorn(trace: Trace) -> None:
    for reg, mass in ((0.01, 0.1), (0.05, 0.6), (0.5, 0.9)):
        name = f"reg {reg} mass {mass}"
        note_transport(trace, name, ot.partial_sinkhorn(COST, mass, reg=reg))
        note_transport(trace, f"{name} mask", ot.partial_sinkhorn(COST, 0.5 * mass, P, Q, reg=reg, mask=MASK))
        solve = partial(ot.partial_sinkhorn, mass=mass, p=P, q=Q, reg=reg, gradient="implicit")
        through(trace, name, solve, COST, SOLVED)
    masses = torch.tensor([0.1, 0.4, 0.8], dtype=torch.float64)
    note_transport(trace, "masses", ot.partial_sinkhorn(COST, masses, P, Q, reg=0.1))
    note_transport(trace, "float32", ot.partial_sinkhorn(COST.float(), 0.3, reg=0.05), LATER)
    note_transport(trace, "one", ot.partial_sinkhorn(COST[0], 0.3, reg=0.05))
    note_transport(trace, "log", ot.partial_sinkhorn(COST, 0.3, reg=0.005, method="log"))
    many = waves(40, 4, 4) + 1.0  # many small problems may be solved together
    note_transport(trace, "many", ot.partial_sinkhorn(many, 0.3, reg=0.05))


def published(trace: Trace) -> None:
    for dtype in (torch.float64, torch.float32):
        tolerance = SOLVED if dtype == torch.float64 else LATER
        for name, given in (
            ("plain", {}),
            ("mask", {"mask": MASK}),
            ("weights", {"p": P.to(dtype), "q": Q.to(dtype)}),
        ):
            cost = COST.to(dtype)
            t = ot.partial_sinkhorn(cost, 0.2, reg=0.03, stop="published", **given)
            for part in ("plan", "value", "mass", "iterations"):
                trace.add(f"{dtype} {name} {part}", getattr(t, part), tolerance)
        one = ot.partial_sinkhorn(waves(16, 16, a=0.3, dtype=dtype) + 1.0, 0.1, reg=0.01, stop="published")
        trace.add(f"{dtype} square plan", one.plan, tolerance)


def label_transport(trace: Trace) -> None:
    cost, share = waves(12, 4, a=0.9) + 1.0, shares(4)
    for mass in (0.2, 0.8, torch.tensor(0.5, dtype=torch.float64)):
        for cap in ("marginal", "scaled"):
            t = ot.label_transport(cost, mass, share, reg=0.05, class_cap=cap)
            note_transport(trace, f"mass {float(mass)} {cap}", t)
    note_transport(trace, "uniform", ot.label_transport(cost, 0.4, reg=0.01))


def exact(trace: Trace) -> None:
    note_transport(trace, "balanced", ot.exact(COST, P, Q))
    note_transport(trace, "uniform", ot.exact(COST))
    note_transport(trace, "mask", ot.exact(COST, mask=MASK))


def partial_exact(trace: Trace) -> None:
    note_transport(trace, "uniform", ot.partial_exact(COST, 0.3))
    note_transport(trace, "weights", ot.partial_exact(COST, 0.7, P, Q))
    note_transport(trace, "mask", ot.partial_exact(COST, 0.4, P, Q, mask=MASK))


def scaling_plan(trace: Trace) -> None:
    similarity = waves(6, 7, 5, a=0.2)
    p, q = shares(6, 7), shares(6, 5, a=2.0)
    padded = p.clone()
    padded[:, -2:] = 0
    padded /= padded.sum(-1, keepdim=True)
    mask = waves(6, 7, 5, a=2.5) > -0.7
    for loop in ("log", "released"):
        for reg in (0.02, 0.3):
            for name, given in (
                ("uniform", {}),
                ("weights", {"p": p, "q": q}),
                ("padded", {"p": padded, "q": q, "passes": 5}),
                ("mask", {"mask": mask}),
            ):
                of = f"{loop} {reg} {name}"

                solve = partial(ot.scaling_plan, reg=reg, loop=loop, **given)
                trace.add(f"{of} plan", solve(similarity), SOLVED)
                through(trace, of, solve, similarity, SOLVED)
                trace.add(f"{of} float32", solve(similarity.float()), LATER)
    weights = p.clone().requires_grad_()
    (ot.scaling_plan(similarity, reg=0.1, p=weights, q=q) * waves(6, 7, 5)).sum().backward()
    assert weights.grad is not None
    trace.add("gradient of weights", weights.grad, SOLVED)


def max_flow(trace: Trace) -> None:
    trace.add("flow", ot.max_flow(MASK & (waves(3, 7, 5, a=4.0) > 0), P, Q), SOLVED)


# ------------------------------------------------------------------------------- noise, losses, evaluation


def some_losses(n: int = 200) -> np.ndarray:
    """Return fixed values of two overlapping groups."""
    low, high = 0.3 + 0.25 * waves(n), 0.9 + 0.3 * waves(n, a=1.0)
    return torch.where(waves(n, a=3.0) > 0.2, high, low).numpy()


def mixture(make: Callable[[], Any], unit: bool = False) -> Entry:
    """Return an entry: a mixture fitted to losses, scaled to the unit interval where it asks for that."""

    def entry(trace: Trace) -> None:
        for name, x in (("", some_losses()), ("skewed ", some_losses(60) ** 3), ("few ", some_losses(9))):
            x = noise.unit_interval(x) if unit else x
            fitted = make().fit(x)
            elsewhere = np.linspace(0, 1, 23) if unit else np.linspace(-0.2, 1.5, 23)
            trace.add(f"{name}probability", fitted.predict_proba(x), SOLVED)
            trace.add(f"{name}elsewhere", fitted.predict_proba(elsewhere), SOLVED)
            trace.add(f"{name}density", fitted.pdf(x), SOLVED)

    return entry


def rank_correspondence(trace: Trace) -> None:
    images, texts = waves(10, 6), waves(10, 6, a=1.0) + 0.5 * waves(10, 6)
    bank = waves(30, 6, a=2.0), waves(30, 6, a=3.0) + waves(30, 6, a=2.0)
    for name, given in (("own anchors", {}), ("given anchors", {"mu": 0.3, "gamma": 0.8})):
        found = noise.rank_correspondence(images, texts, *bank, **given)
        for part, x in found._asdict().items():
            trace.add(f"{name} {part}", torch.as_tensor(x), SOLVED)
    distances = noise.bank_distances(images, bank[0])
    trace.add("distances", distances, SOLVED)
    trace.add("ranks", noise.max_ranks(distances.round(decimals=1)), SOLVED)
    trace.add("nearest", noise.nearest_entries(distances, 4), SOLVED)


def draws(trace: Trace) -> None:
    image_of = np.repeat(np.arange(40), 5)
    for rate in (0.2, 0.6, 1.0):
        for protocol in ("images", "captions", "pairs"):
            trace.add(f"{protocol} {rate}", noise.mismatch(image_of, rate, seed=7, protocol=protocol), SOLVED)
    classes = np.arange(150) * 7 % 6
    for rate in (0.2, 0.6):
        of = {"n_classes": 6, "seed": 7}
        trace.add(f"symmetric {rate}", noise.symmetric_labels(classes, rate, **of), SOLVED)
        trace.add(f"exclusive {rate}", noise.symmetric_labels(classes, rate, **of, exclusive=True), SOLVED)
        trace.add(f"asymmetric {rate}", noise.asymmetric_labels(classes, rate, **of), SOLVED)


def division(trace: Trace) -> None:
    p, matched = 0.5 + 0.5 * waves(80).numpy(), waves(80, a=0.4).numpy() > -0.3
    for name, found in (
        ("division", noise.division(p, matched)),
        ("calibration", noise.calibration(p, matched)),
        ("detection", noise.detection(p, matched, first=20)),
    ):
        trace.add(name, {k: v for k, v in found.items() if v is None or isinstance(v, int | float)}, SOLVED)


def of_loss(make: Callable[[Tensor], Tensor]) -> Entry:
    """Return an entry: values and gradient of a loss on fixed similarities."""

    def entry(trace: Trace) -> None:
        for n in (6, 9):
            S = (0.4 * waves(n, n, a=0.1) + 0.2 * torch.eye(n, dtype=torch.float64)).requires_grad_()
            value = make(S)
            (value * waves(*value.shape, a=5.0)).sum().backward()
            assert S.grad is not None
            trace.add(f"{n} value", value, SOLVED)
            trace.add(f"{n} gradient", S.grad, SOLVED)

    return entry


def plan_of(S: Tensor) -> Tensor:
    return ot.sinkhorn(1 - S.detach(), reg=0.1).plan


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"triplet {x}": lambda S, x=x: losses.triplet(S, 0.2, x) for x in ("hardest", "mean", "sum")},
    **{
        f"complementary {x}": lambda S, x=x: losses.complementary(S, x, 0.1)
        for x in ("log", "tan", "abs", "exp", "gce")
    },
    "info_nce": lambda S: losses.info_nce(S, 0.1),
    "infonce_rce": lambda S: losses.infonce_rce(S, 0.1),
    "reverse_cross_entropy": lambda S: losses.reverse_cross_entropy(S, 0.1),
    "generalised_cross_entropy": lambda S: losses.generalised_cross_entropy(S, 0.1, 0.6),
    "rematch_sym_kl": lambda S: losses.rematch_sym_kl(S, plan_of(S), 0.1),
    "rematch_kl": lambda S: losses.rematch_kl(S, plan_of(S), 0.1),
    "rematch_infonce": lambda S: losses.rematch_infonce(S, plan_of(S), 0.1),
    "soft_margin_triplet": lambda S: losses.soft_margin_triplet(
        S, losses.soft_margins(0.5 + 0.5 * waves(len(S), a=1.0))
    ),
}


def retrieval(trace: Trace) -> None:
    S = waves(12, 36, a=0.8).round(decimals=1)  # with ties
    for ties in ("stable", "pessimistic", "shared"):
        trace.add(f"recall {ties}", evaluation.recall(S, 3, ties=ties), SOLVED)
    trace.add("folds", evaluation.recall(S, 3, folds=2), SOLVED)
    for direction in ("i2t", "t2i"):
        trace.add(f"dual softmax {direction}", evaluation.dual_softmax(S, 0.1, direction=direction))
    relevance = (waves(12, 36, a=3.0) + 1) / 2
    relevance = torch.where(relevance > 0.8, torch.ones(()), relevance)
    for measure in (evaluation.map_at_r, evaluation.relevant_recall):
        trace.add(measure.__name__, measure(S, relevance), SOLVED)
    queries, gallery = waves(15, 4), waves(20, 4, a=1.0)
    of, among = torch.arange(15) % 4, torch.arange(20) % 5
    for k in (None, 6):
        trace.add(
            f"mean average precision {k}",
            evaluation.mean_average_precision(queries, gallery, of, among, k),
            SOLVED,
        )
    trace.add("precision at k", evaluation.precision_at_k(queries, gallery, of, among, 5), SOLVED)


OTHERS: dict[str, Entry] = {
    **{
        f"solver {f.__name__}": f
        for f in (
            *(sinkhorn, partial_sinkhorn, published, label_transport),
            *(exact, partial_exact, scaling_plan, max_flow),
        )
    },
    "noise beta_mixture": mixture(noise.BetaMixture),
    "noise beta_mixture bicro": mixture(noise.BetaMixture.bicro, unit=True),
    "noise gaussian_mixture": mixture(noise.GaussianMixture1d),
    "noise gaussian_mixture published": mixture(noise.GaussianMixture1d.published),
    **{f"noise {f.__name__}": f for f in (rank_correspondence, draws, division)},
    **{f"loss {name}": of_loss(loss) for name, loss in LOSSES.items()},
    "evaluation retrieval": retrieval,
}
