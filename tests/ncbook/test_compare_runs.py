"""Means, paired differences, and measured tables from records whose numbers are known beforehand."""

import itertools
import math

import ncbook
import pandas as pd
import pytest
from ncbook import board
from ncbook.compare import Difference, growth, paired
from ncbook.evidence import best_other
from ncbook.layouts import layout_of
from ncbook.marks import explained, marks_of
from ncbook.match import run_of
from ncbook.papers import rows_of
from ncbook.regime import ONLY_SHORT, place_of
from ncbook.runs import outdated
from ncbook.variant import variant
from records_made import collect, lines, save, save_category

import nclib


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Plain training and L2RM on bundled data, three seeds; NCR once; variants; a paper's data."""
    folder = tmp_path_factory.mktemp("made")
    noisy, clean = {"model": "vse", "mrate": 0.6}, {"model": "omit", "mrate": 0.0}
    for seed, (plain, l2rm) in enumerate(((200, 300), (210, 306), (220, 330))):
        save(folder, "plain", plain, **noisy, seed=seed, protocol="images")
        save(folder, "l2rm", l2rm, **noisy, seed=seed, protocol="images")
        save(folder, "l2rm", l2rm - 20, **noisy, seed=seed, cost="cosine")
        save(folder, "plain", 400 + seed, **clean, seed=seed)
        save(folder, "plain", 380 + seed, **clean, seed=seed, model_options={"matching": "cam"})
        save_category(folder, "uot_rcl", 0.7 + 0.01 * seed, noise_rate=0.4, seed=seed)
        save_category(folder, "deep_sm", 0.6, noise_rate=0.4, seed=seed)
        save_category(folder, "uot_rcl", 0.65, noise_rate=0.4, seed=seed, lam=0.0)
    save(folder, "ncr", 250, **noisy, seed=0, protocol="images")
    save(folder, "l2rm", 500, **noisy, seed=0, protocol="captions")
    paper = {"preset": "paper", "data_options": {"root": "data"}}
    here = {"dataset": "f30k", "model": "sgr", "protocol": "images", "mrate": 0.6, "images": 1000, **paper}
    for seed, total in enumerate((440.0, 460.0)):
        save(folder, "l2rm", total, seed=seed, **here)
    save(folder, "l2rm", 300, seed=0, **here, rho=1.0)
    save(folder, "l2rm", 1, seed=0, **here | {"mrate": 0.4, "images": 500})
    save_category(folder, "uot_rcl", 0.5, noise_rate=0.6, dataset="wikipedia", **paper)
    (folder / "bench.json").write_text("{}")
    return ncbook.load_runs(folder)


def test_differences_without_spread_or_without_runs():
    assert Difference(()).n == 0
    assert math.isnan(Difference((2.0,)).p)
    assert Difference((2.0,)).sign == "open"
    assert "no interval" in str(Difference((2.0,)))
    assert math.isnan(Difference((2.0, 2.1)).p)
    same = Difference((2.0, 2.0, 2.0))
    assert (same.interval, same.p, same.sign) == ((2.0, 2.0), 0.0, "above")
    assert Difference((0.0, 0.0, 0.0)).p == 1.0
    assert str(Difference((), "x")) == "x: no shared seed"


def test_a_run_on_the_papers_data_fills_its_cell_and_no_other(made):
    rows = lines(ncbook.printed_table("L2RM", "6", made))
    filled = [r for r in rows if r["n"] != "0"]
    assert {(r["rate"], r["method"], r["data"]) for r in filled} == {("0.6", "L2RM-SGR", "Flickr30K")}
    total = next(r for r in filled if r["recall"] == "rSum")
    assert (total["printed"], total["mean"], total["n"]) == ("448.5", "450.0000", "2")
    assert float(total["difference"]) == pytest.approx(1.5)
    page = ncbook.printed_table("L2RM", "6", made)._repr_html_()
    assert "450.0 ± 14.1 (2)\n+1.5 ≈" in page
    # the same runs stand in every table that prints this row, and the variant in the ablation alone
    assert sum(r["n"] == "2" for r in lines(ncbook.printed_table("L2RM", "1", made))) == 7
    ablation = {r["method"] for r in lines(ncbook.printed_table("L2RM", "3", made)) if r["n"] == "1"}
    assert ablation == {"L2RM w/o Partial OT"}


def test_printed_names_lead_to_runs_that_exist():
    """Every run behind a printed row can be resolved: method, model and options are known."""
    rows = [(layout, row) for key, layout in ncbook.LAYOUTS.items() for row in rows_of(*key)]
    runs = {(run.method, run.model, run.variant): run for row in rows if (run := run_of(*row))}
    for run in runs.values():
        own = nclib.runs.experiment_of(run.method).parameters()
        given = {k: v for k, v in run.options.items() if k in own}
        if "model" in own:
            rest = {k: v for k, v in run.options.items() if k not in own}
            given |= {"model": run.model, "model_options": rest}
        assert variant(nclib.resolve(run.method, **given).flat()) == run.variant
    assert len(runs) > 40


def test_figures_draw_the_papers_data_once_they_are_recorded(made, nothing):
    table, labels = layout_of("L2RM", "6"), layout_of("UOT-RCL", "II")
    only = {"figure": True, "methods": ("l2rm",)}
    assert place_of(table, made, **only).where == {"dataset": "f30k", "preset": "paper", "model": "sgr"}
    assert place_of(table, nothing, **only).where == {"dataset": "emoji", "preset": "quick", "model": "vse"}
    assert place_of(table, made, preset="quick", model="vse", **only).where["dataset"] == "emoji"
    assert place_of(table, made, **only).remark == ""
    assert place_of(labels, nothing).where == {"dataset": "emoji_category", "preset": "quick"}
    for runs in (nothing, made):
        figure = ncbook.rates_figure("L2RM", "6", runs, dataset="Flickr30K", methods=("l2rm",))
        left, right = figure.axes
        assert list(left.lines[0].get_ydata()) == [492.5, 479.8, 448.5, 378.5]
        assert bool(right.lines) == (runs is made)
    title = right.get_title() + right.get_title("left")  # where the style puts it
    assert "f30k, paper, sgr,\nimages exchanged, 1 to 2 seeds" in title


def save_rows(folder, rows, *, preset="standard", seeds=(0,), **where):
    """Store methods with their options, under one noise."""
    place = {"dataset": "f8k", "data_options": {"root": "."}, "model": "bow"}
    where |= place if preset == "standard" else {"model": "vse"}
    for seed, (method, options) in itertools.product(seeds, rows):
        save(folder, method, 300, preset=preset, seed=seed, **where, **options)


MAIN = [(method, {}) for method in ("plain", "ncr", "decl", "bicro", "mscn", "repair")]
PARTS = [("repair", {"variant": name} if name else {}) for name in ("hard", "hard+drop", "rc+drop", "")]


def test_longer_runs_are_shown_wherever_they_have_most_rows(tmp_path):
    noise, layout = {"mrate": 0.4, "protocol": "captions"}, layout_of("REPAIR", "I")
    save_rows(tmp_path, MAIN, **noise, preset="quick", seeds=(0, 1))
    short = ncbook.load_runs(tmp_path)
    assert ncbook.bundled_table("REPAIR", "I", short).lines[0] == ONLY_SHORT
    assert ONLY_SHORT in figure_text(ncbook.rates_figure("REPAIR", "I", short, dataset="Flickr30K"))
    save_rows(tmp_path, MAIN[2:], **noise)
    runs = ncbook.load_runs(tmp_path)
    place = {"dataset": "f8k", "preset": "standard"}
    assert place_of(layout, runs, figure=True).where == place | {"model": "bow"}
    assert (place_of(layout, runs).where, place_of(layout, runs).remark) == (place, "")
    assert place_of(layout, runs, preset="quick").where["dataset"] == "emoji"
    drawn = figure_text(ncbook.rates_figure("REPAIR", "I", runs, dataset="Flickr30K"))
    assert "Flickr8K, standard, bow,\ncaptions exchanged, 1 seed" in drawn
    assert ONLY_SHORT not in drawn


def test_longer_runs_under_another_noise_are_shown_and_the_difference_is_named(tmp_path):
    save_rows(tmp_path, PARTS, mrate=0.4, protocol="captions", preset="quick")
    save_rows(tmp_path, PARTS[3:], mrate=0.4, protocol="captions")  # of the full method alone
    save_rows(tmp_path, PARTS[:2], mrate=0.6, protocol="images")
    key = ("REPAIR", "III")
    assert ncbook.bundled_table(*key, ncbook.load_runs(tmp_path)).lines[0] == ONLY_SHORT  # two rows of four
    save_rows(tmp_path, PARTS[2:], mrate=0.6, protocol="images")
    runs = ncbook.load_runs(tmp_path)
    sheet, figure = ncbook.bundled_table(*key, runs), ncbook.rows_figure(*key, runs)
    assert "(captions exchanged, rate 0.4)" in sheet.lines[0]
    assert "images exchanged at rate 0.6" in sheet.lines[0]
    assert {row["rate"] for row in lines(sheet)} == {"0.6"}
    assert sum(row["n"] == "1" for row in lines(sheet)) == 4
    assert "Flickr8K, standard, bow" in figure_text(figure)
    assert "images exchanged at rate 0.6" in figure_text(figure).replace("\n", " ")


def figure_text(figure):
    titles = [axis.get_title() + axis.get_title("left") for axis in figure.axes]
    return "\n".join([*titles, figure.get_suptitle()])


def test_a_difference_carries_the_marks_of_the_runs_that_it_compares():
    ours = pd.DataFrame({"seed": [0, 1], "rsum": [9.0, 8.0], "last.rsum": [7.0, 7.0], "best_epoch": [1, 3]})
    ours = ours.assign(method="ncr", warmup_epochs=2, epochs=3, remarks=["", "a network took no step"])
    theirs = pd.DataFrame({"seed": [0, 1], "rsum": [5.0, 5.5], "last.rsum": [5.0, 6.0]})
    both = paired(ours, theirs)
    assert both.marks == ("†", "*")
    assert (str(both).endswith(") † *"), both.short.endswith("(2) † *")) == (True, True)
    assert paired(ours, theirs, "last.rsum").marks == ("*",)
    folded = [part.assign(**{"folded.rsum": part["rsum"]}) for part in (ours, theirs)]
    assert paired(*folded, "folded.rsum").marks == both.marks
    assert (paired(ours, theirs[:1]).marks, paired(theirs, ours[1:]).marks) == (("†",), ("*",))
    assert growth(paired(theirs, theirs), both, "").marks == both.marks
    every = pd.concat([ours, theirs.assign(method="x")]).assign(mrate=0.6)
    (found,) = best_other(every, "method", "ncr", conditions=["mrate"])
    assert found.marks == both.marks


def test_a_column_that_no_record_has_is_refused():
    with pytest.raises(ValueError, match=r"no record has a column method_loss; there are .*option\.loss"):
        ncbook.recorded(method="plain", method_loss="gce")
    assert len(ncbook.recorded(method="plain", **{"option.loss": "gce"}))


def test_a_package_away_from_its_book_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("ncbook.runs.RECORDED", tmp_path / "results")
    for reader in (ncbook.recorded, ncbook.load_runs):
        with pytest.raises(FileNotFoundError, match="reads the book beside it; pip install -e book"):
            reader()


def test_a_recorded_run_is_found_by_equal_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("ncbook.runs.RECORDED", tmp_path)
    asked = {"model": "vse", "mrate": 0.4}
    save(tmp_path, "plain", 300, **asked)
    save_category(tmp_path, "mrl", 0.7, noise_rate=0.2)
    with pytest.raises(ValueError, match=r"\.json is in no table of the book: ncbook collect GRID"):
        ncbook.recorded_run("plain")
    collect(tmp_path)
    assert ncbook.recorded_run("plain", **asked) is None  # made on other data
    monkeypatch.setattr("ncbook.nearest.checksum", lambda *_: "d")
    assert ncbook.recorded_run("plain", **asked, out="elsewhere").metrics["test"]["rsum"] == 300
    assert ncbook.recorded_run("mrl", noise_rate=0.2).metrics["test"]["map_avg"] == 0.7
    for method, other in (("plain", asked | {"lr": 0.5}), ("l2rm", asked), ("mrl", {"noise_rate": 0.4})):
        assert ncbook.recorded_run(method, **other) is None
    with pytest.raises(ValueError, match="unknown parameter 'mrat'"):
        ncbook.recorded_run("plain", mrat=0.4)


def test_a_run_one_number_behind_its_last_move_is_outdated(monkeypatch):
    monkeypatch.setattr("nclib.runs.identity.MOVED", {"method plain": 3})
    runs = pd.DataFrame({"method": "plain", "model": "vse", "environment.numerics": [1, 2, 3, None]})
    assert outdated(runs).tolist() == [True, True, False, True]


def twice(folder):
    """Store one seed of one setting twice, with rSum 300 and 310; return both records."""
    at = {"model": "vse", "mrate": 0.4, "seed": 0}
    save(folder, "l2rm", 300, **at)
    save(folder, "l2rm", 310, **at)
    return [nclib.Record.load(path) for path in sorted(folder.glob("*.json"))]


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_of_a_seed_that_was_run_twice_the_newest_numerics_count(tmp_path, first, second):
    """Once with a setting that this version has no more, so that their names differ."""
    records = twice(tmp_path)
    for record, numerics in zip(records, (first, second), strict=True):
        record.environment["numerics"] = numerics
    records[1].settings["gone"] = 1
    for record in records:
        record.save(tmp_path / f"{record.name}.json")
    assert len(nclib.table(tmp_path)) == 2
    runs = ncbook.load_runs(tmp_path).retrieval
    assert runs["rsum"].tolist() == [300.0 if first > second else 310.0]


def test_one_seed_on_other_data_of_the_same_name_is_another_run(tmp_path):
    _, second = twice(tmp_path)
    second.data["checksum"] = "e"
    second.save(tmp_path / f"{second.name}.json")
    assert ncbook.load_runs(tmp_path).retrieval["rsum"].tolist() == [300.0, 310.0]


def test_a_collapsed_run_has_a_mark_also_where_its_record_does_not_say_it(tmp_path):
    _, second = twice(tmp_path)
    second.settings["seed"] = 1
    rows = (("warm-up", 200.0), ("training", 120.0), ("training", 100.0))
    second.curves = [{"phase": phase, "val_rsum": score} for phase, score in rows]
    second.save(tmp_path / f"{second.name}.json")
    table = ncbook.load_runs(tmp_path).retrieval
    assert marks_of(table[table["seed"] == 0]) == ()
    assert marks_of(table) == ("§",)
    assert board.scored(ncbook.load_runs(tmp_path))["collapsed"].sum() == 1
    both = paired(table, table.assign(rsum=table["rsum"] - 1))
    assert both.marks == ("§",)
    assert explained(both.marks).startswith("§ a run collapsed: ")


@pytest.mark.parametrize(("best", "told"), [(1, 0.7), (2, 0.7), (3, 0.9)])
def test_signals_are_those_of_the_tested_epoch_or_of_the_first_after_warmup(tmp_path, best, told):
    warm, *training = ({"epoch": k, "phase": "training", "val_rsum": 1.0} for k in (1, 2, 3))
    curves = [warm | {"phase": "warm-up"}] + [
        row | {"auc": 0.5 + 0.2 * k} for k, row in enumerate(training, 1)
    ]
    save(tmp_path, "ncr", 100.0, best=best, curves=curves, dataset="planted", mrate=0.4)
    assert ncbook.load_runs(tmp_path).retrieval["tested.auc"].tolist() == [pytest.approx(told)]
