"""What answers is bound to what was asked: settings, data, code of the user's, and the numbers' last move."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncbook import nearest
from small import QUIET, made

import nclib
from nclib.runs import Record, append, identity, store
from nclib.runs.request import CODE_PART, DATA_PART, Request

FLAT = nclib.resolve("plain", **{k: v for k, v in QUIET.items() if k != "progress"}).flat()


def recorded(name: str = "r", rsum: float = 300.0, **parts: Any) -> Record:
    """Return a record, which no run made, of the run that FLAT asks for."""
    parts["settings"] = FLAT | parts.get("settings", {})
    parts["environment"] = {"numerics": identity.NUMERICS} | parts.get("environment", {})
    return made(name, FLAT["seed"], rsum, **parts)


def unlike(record: Record, **asked: Any) -> list[str]:
    return Request({**FLAT, **asked}, checksum=lambda *_: "d").unlike(vars(record))


def test_a_record_answers_for_its_settings_data_code_and_numbers(monkeypatch):
    assert unlike(recorded()) == []
    assert unlike(recorded(), out="elsewhere", device="cpu", threads=3) == []
    assert unlike(recorded(), mrate=0.3, epochs=9) == ["mrate", "epochs"]
    assert unlike(recorded(data={"checksum": "e"})) == [DATA_PART]
    assert unlike(recorded(environment={"own_code": "1"})) == [CODE_PART]
    old = recorded(environment={"numerics": identity.NUMERICS - 1})
    assert unlike(old) == []  # its method never moved
    monkeypatch.setattr(identity, "MOVED", {"model bow": identity.NUMERICS})
    assert unlike(recorded()) == []
    assert unlike(old) == [f"numerics {identity.NUMERICS - 1}, its numbers moved at {identity.NUMERICS}"]
    newer = recorded(environment={"numerics": identity.NUMERICS + 1})
    assert unlike(newer) == [f"numerics {identity.NUMERICS + 1}, this version knows {identity.NUMERICS}"]


NUMBERS = sorted(k for k, v in FLAT.items() if type(v) in (int, float) and k not in identity.FREE)


@given(st.sets(st.sampled_from(NUMBERS), max_size=4), st.sampled_from(["", "e"]), st.sampled_from(["", "1"]))
def test_only_what_was_asked_for_answers(changed, data, code):
    """Any settings that name a run, other data, other code of the user's: alone or together."""
    record = recorded(data={"checksum": data or "d"}, environment={"own_code": code} if code else {})
    said = unlike(record, **{name: FLAT[name] + 1 for name in changed})
    assert set(said) == changed if changed else said == ([CODE_PART] if code else [DATA_PART] if data else [])


@pytest.mark.parametrize("setting", [*identity.UNSAID])
def test_a_setting_that_is_said_where_it_is_unusual_is_compared(setting):
    """An averaged pair does not answer for one network, nor one network for the pair."""
    named = setting not in identity.FREE
    pair = recorded(settings={setting: 2})
    assert unlike(pair) == [setting] * named
    assert unlike(recorded(), **{setting: 2}) == [setting] * named
    assert unlike(pair, **{setting: 2}) == []


def test_data_that_are_not_there_are_not_compared_and_others_are_loaded_last():
    asked = Request(FLAT, checksum=lambda *_: None)
    assert asked.unlike(vars(recorded(data={"checksum": "e"}))) == []

    def refuse(*_):
        raise AssertionError("the data were loaded for a record of another run")

    assert Request({**FLAT, "seed": 9}, checksum=refuse).unlike(vars(recorded())) == ["seed"]


def test_files_are_compared_by_their_names_where_the_request_has_no_digests():
    record = recorded()
    record.settings |= {"model_options": {"text_folder": "bert"}}
    record.settings["files_sha256"] = {"model_options": {"text_folder": "0123"}}
    assert unlike(record, model_options={"text_folder": "/data/bert"}) == []
    assert unlike(record, model_options={"text_folder": "/data/other"}) == ["model_options"]
    digests = {"files_sha256": {"model_options": {"text_folder": "4567"}}}
    assert unlike(record, model_options={"text_folder": "/data/bert"}, **digests) == ["model_options"]


def test_requests_share_the_data_and_the_nearest_record_is_told(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(nearest, "checksum", lambda *of: loaded.append(of) or "d")
    append(tmp_path / "g.csv", [recorded(f"r{seed}", settings=FLAT | {"seed": seed}) for seed in range(3)])
    wanted = [FLAT | {"seed": seed} for seed in (2, 0, 1, 7)] + [FLAT | {"mrate": 0.5}]
    found = nearest.nearest(tmp_path, nearest.requests(wanted))
    told = [(one and one.content["name"], other) for one, other in found]
    assert told == [("r2", []), ("r0", []), ("r1", []), (None, []), ("r0", ["mrate"])]
    assert len(loaded) == 1


def test_what_a_run_made_is_found_by_its_settings_and_not_after_its_data_changed(tmp_path, monkeypatch):
    record = nclib.run("plain", **QUIET, out=tmp_path)
    settings = nclib.resolve("plain", **{k: v for k, v in QUIET.items() if k != "progress"})
    ((one, unlike),) = nearest.nearest(tmp_path, nearest.requests([settings.flat()]))
    assert (one.record(), unlike) == (record, [])
    load = nclib.data.load

    def other(name, **options):
        return dataclasses.replace(load(name, **options), checksum="another")

    monkeypatch.setattr(nclib.data, "load", other)
    ((_, unlike),) = nearest.nearest(tmp_path, nearest.requests([settings.flat()]))
    assert unlike == ["data.checksum"]


# -- one run counts once ---------------------------------------------------------------------------------


def test_a_run_counts_once_whatever_its_numerics_and_the_newest_counts(tmp_path, monkeypatch):
    for n, name in ((1, "b"), (3, "a"), (2, "c")):
        recorded("r", environment={"numerics": n}).save(tmp_path / name / "x.json")
    with pytest.warns(UserWarning, match="each run counts once"):
        assert list(nclib.table(tmp_path)["environment.numerics"]) == [3]
    monkeypatch.setattr(identity, "MOVED", {"method plain": 3})
    recorded("r", 200.0, environment={"numerics": 1}).save(tmp_path / "b" / "x.json")
    with pytest.warns(UserWarning, match="each run counts once"):
        assert list(nclib.table(tmp_path)["rsum"]) == [300.0]


def test_a_record_from_before_its_numbers_moved_gives_way_in_a_table(tmp_path, monkeypatch):
    old, new = (recorded("r", rsum, environment={"numerics": n}) for rsum, n in ((200.0, 1), (300.0, 3)))
    append(tmp_path / "g.csv", [old])
    with pytest.raises(ValueError, match="but other numbers"):
        append(tmp_path / "g.csv", [new])
    monkeypatch.setattr(identity, "MOVED", {"method plain": 3})
    assert append(tmp_path / "g.csv", [new]) == 1
    assert list(nclib.table(tmp_path)["rsum"]) == [300.0]
    with pytest.raises(ValueError, match="but other numbers"):
        append(tmp_path / "g.csv", [old])


@pytest.mark.parametrize("numerics", [(3, 3), (2, 3), (1, 1)])
def test_two_records_of_one_run_that_differ_are_refused_with_both_machines(tmp_path, monkeypatch, numerics):
    monkeypatch.setattr(identity, "MOVED", {"method plain": 2})
    for name, n, rsum in zip("ab", numerics, (300.0, 301.0), strict=True):
        device = {"numerics": n, "device": f"CPU, maker {name}"}
        recorded("r", rsum, environment=device).save(tmp_path / name / "x.json")
    said = r"made on CPU, maker [ab], .*made on CPU, maker [ab], .* metrics\.val\.rsum is 30.\.0 and 30.\.0"
    with pytest.raises(ValueError, match=said):
        nclib.table(tmp_path)
    broken: list[str] = []
    with pytest.warns(UserWarning, match="counts once"):
        assert len(store.stored_records(tmp_path, broken=broken)) == 1
    assert len(broken) == 1
