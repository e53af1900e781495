"""What names a run: settings, the number since which its numbers stand, and code of the user's."""

from __future__ import annotations

import pytest
import torch
from small import QUIET, fact

import nclib
from nclib import label_noise, methods
from nclib.common.options import rules
from nclib.common.source import own_code
from nclib.methods.base import METHODS
from nclib.methods.l2rm import L2RM
from nclib.runs import Settings, experiment_of, identity
from nclib.runs.record import completed_settings
from nclib.runs.request import Request


def name(method: str, **values) -> str:
    experiment = experiment_of(method)
    return experiment.request(experiment.resolve(**values)).fingerprint


def test_a_noise_file_counts_by_its_content():
    one = {"noise_file": "/a/noise.npz", "noise_sha256": "12"}
    assert identity.naming(one) == identity.naming({**one, "noise_file": "noise.npz"})
    assert identity.naming({"noise_file": ""}) == {"noise_file": ""}


# First digits of the digests of default settings: where one changes, users lose their finished runs.
NAMES = """
bicro f3b9c8 crank c7f4b4 crank_plus 568d31 crcl 108e08 cream 62f0d9 decl d9eefa gsc a7db0c
gsc_plus 564f7e in2r 654851 l2rm 49a8d1 linear d76c5b mscn d3e1cd ncr 6f9029 pcsr 052556 plain 5ef50a
rcl f8c440
repair 4003d1 sps 6fd170 acmr 91d2a8 contrastive_heads 605e9b dcca 89045c dccae 2a8e4d deep_sm 999187
dscmr 88fd4c elrcmr 067ccd fgcrossnet_losses 70d1b9 gma 6c6196 gss_regression 1bda10 mcca f70140
mrl dd05d8 mvda bccf74 nirnl 79b3a2 pls e0eb0d sdml 8f04b9 uot_rcl 215ecd zero_shot c5479c
"""


def default(method: str) -> str:
    """Return the digest that names a run with the default of every setting."""
    experiment = experiment_of(method)
    own = experiment.methods.options(method)()
    settings = Settings(method, experiment.options(), experiment.schedule(), own, {}, {})
    return Request(settings.flat()).fingerprint


@pytest.mark.parametrize("method", [*methods.available(), *label_noise.available()])
def test_a_new_setting_renames_no_run(method):
    """A new setting or option belongs in ``identity.ADDED``, with the value that changes nothing."""
    words = NAMES.split()
    known = dict(zip(words[::2], words[1::2], strict=True))
    assert default(method).startswith(known.get(method, "a new method: add the first digits of its digest"))


def test_a_setting_that_was_added_names_a_run_where_it_changes_something(monkeypatch):
    settings = nclib.resolve("l2rm", dataset="planted", model_options={"dropout": 0.1}).flat()
    own, of_model = settings["method_options"], settings["model_options"]
    without = {k: v for k, v in settings.items() if k != "decay"}
    without |= {"method_options": {k: v for k, v in own.items() if k != "stop"}}
    without |= {"model_options": {k: v for k, v in of_model.items() if k != "dropout"}}
    assert identity.naming(settings) != identity.naming(without)
    added = {"decay": "steps", "l2rm.stop": "published", "model_options.dropout": 0.1}
    monkeypatch.setattr(identity, "ADDED", added | {"ncr.stop": "accurate", "planted.x": 1})
    assert identity.naming(settings) == identity.naming(without)
    changed = identity.naming({**settings, "decay": "cosine", "method_options": {**own, "stop": "accurate"}})
    monkeypatch.setattr(identity, "ADDED", {"decay": "cosine", "l2rm.stop": "accurate"})  # not the defaults
    for found in (changed, completed_settings(without)):
        assert (found["decay"], found["method_options"]["stop"]) == ("cosine", "accurate")


def test_an_option_that_was_removed_stands_in_names_and_old_records_are_read():
    experiment = experiment_of("l2rm")
    now = experiment.resolve(dataset="planted")
    own = now.flat()["method_options"]
    old, other = ({**now.flat(), "method_options": {**own, "split": x}} for x in ("mean", "hardest"))
    assert identity.naming(now.flat()) == identity.naming(old)
    assert identity.naming(other)["method_options"]["split"] == "hardest"
    assert completed_settings(old)["method_options"] == own
    assert completed_settings(other)["method_options"] == {**own, "split": "hardest"}
    assert experiment.read(old) == now
    for refused in (lambda: experiment.read(other), lambda: experiment.resolve(split="hardest")):
        with pytest.raises(ValueError, match=r"split.*removed.*'mean'"):
            refused()
    methods.register("bolder", summary="L2RM by another name")(type("Bolder", (L2RM,), {}))
    try:
        derived = {**old, "method": "bolder"}
        assert completed_settings(derived)["method_options"] == own
        assert experiment_of("bolder").read(derived).method_options == now.method_options
    finally:
        METHODS.remove("bolder")


def test_an_option_that_was_added_and_removed_again_stands_in_no_name():
    now = nclib.resolve("gsc_plus", dataset="planted")
    own = now.flat()["method_options"]
    old = {**now.flat(), "method_options": {**own, "words": "attention"}}
    assert identity.naming(old) == identity.naming(now.flat())
    assert "words" not in identity.naming(old)["method_options"]
    assert completed_settings(old)["method_options"] == own
    assert experiment_of("gsc_plus").read(old) == now


def test_what_was_removed_is_no_option_of_its_method_any_more():
    for method, gone in identity.REMOVED.items():
        assert not set(gone) & set(rules(experiment_of(method).methods.options(method)))


def test_only_runs_whose_numbers_moved_get_new_names(monkeypatch):
    every = {"l2rm": {"model": "saf"}, "ncr": {"model": "saf"}, "plain": {"model": "vse"}}
    before = {method: name(method, **values) for method, values in every.items()}

    def renamed(**moved: int) -> list[str]:
        monkeypatch.setattr(identity, "MOVED", {k.replace("_", " "): v for k, v in moved.items()})
        return [method for method, values in every.items() if name(method, **values) != before[method]]

    assert renamed() == []
    assert renamed(method_l2rm=2) == ["l2rm"]
    assert renamed(model_saf=2) == ["l2rm", "ncr"]
    assert renamed(solver_sinkhorn=2) == []  # the golden runs of methods that use it move with it
    assert renamed(run=2) == ["l2rm", "ncr", "plain"]


def test_where_pictures_lie_does_not_name_a_run_and_is_told_where_it_is_chosen():
    experiment = experiment_of("plain")
    usual, chosen = (experiment.resolve(dataset="planted", pictures_on=on) for on in ("auto", "device"))
    assert experiment.request(chosen).fingerprint == experiment.request(usual).fingerprint
    assert "pictures_on" not in usual.flat()  # records and their digests stay
    assert experiment.read(chosen.flat()).run.pictures_on == "device"


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("plain", {"dataset": "planted", "model": "bow", "mrate": 0.4}),
        ("mrl", {"dataset": "planted_category"}),
    ],
)
def test_a_seed_of_the_noise_draws_nothing_else(method, own, tmp_path):
    experiment = experiment_of(method)

    def loaded(**seeds: int):
        settings = experiment.resolve(**own, **seeds)
        run = experiment.load(settings, tmp_path, torch.device("cpu"))
        weights = [p.detach().numpy() for network in run.trainer.networks for p in network.parameters()]
        drawn = fact([weights, run.trainer.generator("pairs").initial_seed()])
        return settings, run.noise.checksum, drawn

    usual, noise, drawn = loaded(seed=1)
    other, *rest = loaded(seed=1, noise_seed=0)
    assert rest == [loaded(seed=0)[1], drawn]
    assert rest[0] != noise
    names = [experiment.folder(one, experiment.request(one)).name for one in (other, usual)]
    assert names[0] != names[1]
    assert "-noise0-s1-" in names[0]
    assert loaded(seed=1, noise_seed=1)[0] == usual
    assert "noise_seed" not in usual.flat()
    assert experiment.read(other.flat()) == other
    (file := tmp_path / "noise.npz").touch()
    with pytest.raises(ValueError, match=r"noise_seed=0 and noise_file=.*give one of them"):
        experiment.resolve(**own, noise_seed=0, noise_file=file)


def test_code_of_the_user_names_a_run_and_that_of_the_package_does_not(monkeypatch):
    before = name("l2rm", dataset="planted")
    monkeypatch.setattr(L2RM, "n_networks", 7)
    assert name("l2rm", dataset="planted") == before
    assert Request({}, own_code([L2RM, experiment_of])).code == {"numerics": identity.NUMERICS}
    named = set()
    for version in (1, 2):
        methods.register("bolder", summary="L2RM by another name")(
            type("Bolder", (L2RM,), {"version": version})
        )
        named.add(name("bolder", dataset="planted"))
        METHODS.remove("bolder")
    assert len(named) == 2


@pytest.mark.slow
def test_a_run_that_goes_on_elsewhere_says_so_and_is_recorded(tmp_path, monkeypatch):
    tiny = QUIET | {"epochs": 2, "warmup_epochs": 1, "out": str(tmp_path)}

    def stop(values, epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nclib.run("plain", **tiny, threads=1, tracker=stop)
    with pytest.warns(UserWarning, match=r"continued on CPU.*, threads=2, .* from epoch 2; before") as said:
        record = nclib.run("plain", **tiny, threads=2)
    assert len(said) == 1
    on = [(entry["from_epoch"], entry["threads"]) for entry in record.environment["computed_on"]]
    assert on == [(1, 1), (2, 2)]
    # a finished run is returned whatever is asked
    assert nclib.run("plain", **tiny, threads=1) == record
    assert len(list(tmp_path.glob("*/record.json"))) == 1


@pytest.mark.filterwarnings("ignore:continued on")
def test_every_move_to_another_machine_is_noted():
    so_far: list[dict] = []
    for epoch, device in enumerate("aabbab", 1):
        so_far = identity.computed_on(so_far, epoch, device)
    assert [(one["from_epoch"], one["device"]) for one in so_far] == [(1, "a"), (3, "b"), (5, "a"), (6, "b")]
