"""Means, paired differences, and measured tables from records whose numbers are known beforehand."""

import csv
import io
import math

import ncbook
import pandas as pd
import pytest
from ncbook.chapters import as_preset
from ncbook.compare import Difference, mean_text
from ncbook.match import run_of
from ncbook.runs import protocol_line
from ncbook.tables import agreement
from records_made import collect, save, save_category
from scipy import stats

import nclib
from nclib import plots
from nclib.runs.variant import in_words, variant


def lines(sheet):
    return list(csv.DictReader(io.StringIO(sheet.file)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Plain training and L2RM on bundled data, three seeds; NCR once; variants; a paper's data."""
    folder = tmp_path_factory.mktemp("made")
    for seed, (plain, l2rm) in enumerate(((200, 300), (210, 306), (220, 330))):
        for method, total in (("plain", plain), ("l2rm", l2rm)):
            save(folder, method, total, model="vse", mrate=0.6, seed=seed, protocol="images")
        save(folder, "l2rm", l2rm - 20, model="vse", mrate=0.6, seed=seed, cost="cosine")
        save(folder, "plain", 400 + seed, model="omit", mrate=0.0, seed=seed)
        save(
            folder, "plain", 380 + seed, model="omit", mrate=0.0, seed=seed, model_options={"matching": "cam"}
        )
        save_category(folder, "uot_rcl", 0.7 + 0.01 * seed, noise_rate=0.4, seed=seed)
        save_category(folder, "deep_sm", 0.6, noise_rate=0.4, seed=seed)
        save_category(folder, "uot_rcl", 0.65, noise_rate=0.4, seed=seed, lam=0.0)
    save(folder, "ncr", 250, model="vse", mrate=0.6, seed=0, protocol="images")
    save(folder, "l2rm", 500, model="vse", mrate=0.6, seed=0, protocol="captions")
    here = {"dataset": "f30k", "preset": "paper", "data_options": {"root": "data"}, "model": "sgr"}
    for seed, total in enumerate((440.0, 460.0)):
        save(folder, "l2rm", total, images=1000, mrate=0.6, seed=seed, protocol="images", **here)
    save(folder, "l2rm", 300, images=1000, mrate=0.6, seed=0, protocol="images", **here, rho=1.0)
    save(folder, "l2rm", 1, images=500, mrate=0.4, seed=0, protocol="images", **here)
    save_category(
        folder,
        "uot_rcl",
        0.5,
        dataset="wikipedia",
        preset="paper",
        noise_rate=0.6,
        data_options={"root": "data"},
    )
    (folder / "bench.json").write_text("{}")
    return ncbook.load_runs(folder)


def test_difference_is_the_paired_t_test():
    a, b = [3.0, 5.0, 9.0, 4.0], [1.0, 4.0, 4.0, 5.0]
    d = Difference(tuple(x - y for x, y in zip(a, b, strict=True)), "a − b")
    test = stats.ttest_rel(a, b)
    interval = test.confidence_interval(0.95)
    assert d.p == pytest.approx(test.pvalue)
    assert d.interval == pytest.approx((interval.low, interval.high))
    assert d.sign == "open"
    assert Difference((1.0, 1.1, 0.9)).sign == "above"
    assert Difference((-1.0, -1.1, -0.9)).sign == "below"


def test_differences_without_spread_or_without_runs():
    assert Difference(()).n == 0
    assert math.isnan(Difference((2.0,)).p)
    assert Difference((2.0,)).sign == "open"
    assert "no interval" in str(Difference((2.0,)))
    same = Difference((2.0, 2.0))
    assert (same.interval, same.p, same.sign) == ((2.0, 2.0), 0.0, "above")
    assert Difference((0.0, 0.0)).p == 1.0
    assert str(Difference((), "x")) == "x: no shared seed"


def test_only_shared_seeds_count():
    a = pd.DataFrame({"seed": [0, 1, 2, 2], "rsum": [10.0, 20.0, 30.0, 50.0]})
    b = pd.DataFrame({"seed": [2, 1, 5], "rsum": [1.0, 2.0, 99.0]})
    assert ncbook.paired(a, b).values == (18.0, 39.0)
    assert ncbook.paired(a.iloc[:0], b).n == 0


def test_mean_text():
    assert mean_text([]) == ""
    assert mean_text([3.0]) == "3.0 (1)"
    assert mean_text([1.0, 2.0, 3.0], 2) == "2.00 ± 1.00 (3)"


def test_variants_name_what_is_unusual(made):
    found = made.retrieval.groupby(["method", "variant"]).size()
    assert found["l2rm", "cost=cosine"] == 3
    assert found["plain", "matching=cam"] == 3
    assert found["l2rm", ""] == 7
    assert found["l2rm", "rho=1"] == 1
    assert made.category.groupby("variant").size().to_dict() == {"": 7, "lam=0": 3}
    assert in_words({"b": 2.0, "a": False}) == "a=False, b=2"
    options = {"marginals": "inter", "tau": 0.1}  # tau is an option of the loss as well
    settings = nclib.resolve("plain", model="omit", loss="infonce", model_options=options).flat()
    assert variant(settings) == "loss=infonce, marginals=inter, model.tau=0.1"
    settings = nclib.resolve("l2rm", model="omit", tau=0.1).flat()
    assert variant(settings) == "tau=0.1"
    paper = {"method": "plain", "model": "omit", "dataset": "f30k", "preset": "paper"}
    glove = "/data/weights/glove_f30k.npy"
    assert variant(paper) == "word_vectors=none"  # the paper's runs start from GloVe
    assert variant({**paper, "model_options": {"word_vectors": glove}}) == ""
    assert variant({**paper, "model_options": {"text": "bert"}}) == "text=bert"
    assert variant({**paper, "preset": "quick"}) == ""
    assert "unknown" in variant({"method": "gone", "model": "vse", "dataset": "emoji", "preset": "quick"})


def test_protocol_line_says_how(made):
    line = protocol_line(made.retrieval[made.retrieval["dataset"] == "emoji"])
    for part in (
        "bundled data emoji",
        "preset quick",
        "seeds 0, 1, 2",
        "200 validation",
        "500 test",
        "CPU, made",
    ):
        assert part in line
    assert protocol_line(made.retrieval.iloc[:0]) == "No record."


def test_measured_table_has_means_and_paired_gains(made):
    sheet = ncbook.bundled_table("L2RM", "6", made)
    rows = {(r["rate"], r["run"]): r for r in lines(sheet)}
    ours = rows["0.6", "l2rm · vse"]
    assert float(ours["rsum mean"]) == pytest.approx(312)
    assert float(ours["rsum std"]) == pytest.approx(15.8745, abs=1e-3)
    assert ours["n"] == "3"
    expected = str(Difference((100.0, 96.0, 110.0)).short)
    assert ours["rsum - plain"] == expected
    assert rows["0.6", "plain · vse"]["rsum - plain"] == "reference"
    assert rows["0.6", "ncr · vse"]["rsum - plain"] == "+50.0 (1)"
    assert ours["printed rows"] == "L2RM-SAF, L2RM-SGR, L2RM-SGRAF"
    none = [r for r in lines(sheet) if r["n"] == "0"]
    assert {r["rate"] for r in none} == {"0.2", "0.4", "0.6", "0.8"}
    assert "no record" in sheet._repr_html_()


def test_ablations_compare_with_the_full_method(made):
    row = next(r for r in lines(ncbook.bundled_table("L2RM", "3", made)) if "cosine" in r["run"])
    assert row["rsum - full method"] == "-20.0 [-20.0, -20.0] (3)"
    row = next(r for r in lines(ncbook.bundled_table("OMIT", "4", made)) if "=cam" in r["run"])
    assert row["rsum - Partial OT"] == "-20.0 [-20.0, -20.0] (3)"


def test_captions_and_images_are_kept_apart(made):
    row = next(r for r in lines(ncbook.bundled_table("REPAIR", "I", made)) if r["run"].startswith("plain"))
    assert row["n"] == "0"  # plain training was recorded under image-level noise only


def test_category_table(made):
    rows = {r["run"]: r for r in lines(ncbook.bundled_table("UOT-RCL", "II", made))}
    assert float(rows["uot_rcl"]["i2t 0.4 mean"]) == pytest.approx(0.72)
    assert rows["uot_rcl"]["mean - deep_sm 0.4"].startswith("+0.110 [")
    assert rows["deep_sm"]["mean - deep_sm 0.4"] == "reference"
    assert rows["uot_rcl"]["i2t 0.2 mean"] == ""
    row = next(r for r in lines(ncbook.bundled_table("UOT-RCL", "IV", made)) if "lam=0" in r["run"])
    assert row["mean - full method 0.4"].startswith("-0.060 [")


@pytest.mark.parametrize("key", [("L2RM", "2"), ("REPAIR", "II"), ("REPAIR", "VI"), ("UOT-RCL", "III")])
def test_tables_without_counterpart(key, made):
    assert ncbook.bundled_table(*key, made) is None


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


def test_category_run_on_the_papers_data_fills_its_cell(made):
    filled = [r for r in lines(ncbook.printed_table("UOT-RCL", "II", made)) if r["n"] != "0"]
    assert [(r["method"], r["direction"], r["rate"], r["mean"]) for r in filled] == [
        ("UOT-RCL", "image → text", "0.6", "0.5100"),
        ("UOT-RCL", "text → image", "0.6", "0.4900"),
    ]


def test_marks():
    assert agreement(5.0, (1.0, 11.0)) == "≈"
    assert agreement(50.0, (1.0, 11.0)) == "▲"
    assert agreement(-50.0, (1.0, 11.0)) == "▼"
    assert agreement(-50.0, (1.0,)) == ""


def test_printed_names_lead_to_runs_that_exist():
    """Every run behind a printed row can be resolved: method, model and options are known."""
    from ncbook.layouts import LAYOUTS
    from ncbook.papers import rows_of

    seen = set()
    for key, layout in LAYOUTS.items():
        for row in rows_of(*key):
            run = run_of(layout, row)
            if run is None or (run.method, run.model, run.variant) in seen:
                continue
            seen.add((run.method, run.model, run.variant))
            if layout.file == "category_map":
                settings = nclib.resolve(run.method, **run.options)
            else:
                own = nclib.runs.experiment_of(run.method).parameters()
                options = {k: v for k, v in run.options.items() if k in own}
                rest = {k: v for k, v in run.options.items() if k not in own}
                settings = nclib.resolve(run.method, model=run.model, model_options=rest, **options)
            assert variant(settings.flat()) == run.variant
    assert len(seen) > 40


def test_figures_draw_the_papers_data_once_they_are_recorded(made, nothing):
    assert ncbook.place_of(made) == {"dataset": "f30k", "preset": "paper", "model": "sgr"}
    assert ncbook.place_of(made, "category_map") == {"dataset": "wikipedia", "preset": "paper"}
    assert ncbook.place_of(nothing) == {"dataset": "emoji", "preset": "quick", "model": "vse"}
    assert ncbook.place_of(made, preset="quick", model="saf")["model"] == "saf"
    right = ncbook.rates_figure("L2RM", "6", made, dataset="Flickr30K", methods=("l2rm",)).axes[1]
    assert "f30k, paper, sgr" in right.get_title()
    assert right.lines


def test_both_panels_show_the_methods_of_the_printed_table(made):
    figure = ncbook.rates_figure("L2RM", "6", made, dataset="Flickr30K")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["plain", "ncr", "bicro", "decl", "rcl", "l2rm"]
    assert not {plots.MATCHED, plots.MISMATCHED} & {line.get_color() for line in figure.axes[0].lines}


@pytest.mark.parametrize("table", ["II", "IV"])
def test_no_method_wears_the_colours_of_right_and_wrong(made, table):
    axis = ncbook.rates_figure("UOT-RCL", table, made, dataset="Wikipedia").axes[0]
    colours = [line.get_color() for line in axis.lines]
    assert len(colours) > 3
    assert not {plots.MATCHED, plots.MISMATCHED} & set(colours)


def test_figures_are_drawn_with_and_without_records(made, nothing):
    for runs in (made, nothing):
        figures = [
            ncbook.rates_figure("L2RM", "6", runs, dataset="Flickr30K", preset="quick", methods=("l2rm",)),
            ncbook.rates_figure("UOT-RCL", "II", runs, dataset="Wikipedia", methods=("uot_rcl",)),
            ncbook.rows_figure("OMIT", "4", runs),
            ncbook.gains_figure(ncbook.gains_over(runs, model="vse"), "t", "x"),
        ]
        assert all(len(f.axes) in (1, 2) for f in figures)
        left, right = figures[0].axes
        assert list(left.lines[0].get_ydata()) == [492.5, 479.8, 448.5, 378.5]
        assert bool(right.lines) == (runs is made)


def test_a_recorded_run_is_found_by_equal_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("ncbook.runs.RECORDED", tmp_path)
    save(tmp_path, "plain", 300, model="vse", mrate=0.4)
    save_category(tmp_path, "mrl", 0.7, noise_rate=0.2)
    with pytest.raises(ValueError, match=r"\.json is in no table of the book: ncbook collect GRID"):
        ncbook.recorded_run("plain")
    collect(tmp_path)
    found = ncbook.recorded_run("plain", model="vse", mrate=0.4, out="elsewhere")
    assert found.metrics["test"]["rsum"] == 300
    assert ncbook.recorded_run("plain", model="vse", mrate=0.4, lr=0.5) is None
    assert ncbook.recorded_run("l2rm", model="vse", mrate=0.4) is None
    assert ncbook.recorded_run("mrl", noise_rate=0.2).metrics["test"]["map_avg"] == 0.7
    assert ncbook.recorded_run("mrl", noise_rate=0.4) is None
    with pytest.raises(ValueError, match="unknown parameter 'mrat'"):
        ncbook.recorded_run("plain", mrat=0.4)


def test_recorded_runs_of_a_task(tmp_path, monkeypatch):
    monkeypatch.setattr("ncbook.runs.RECORDED", tmp_path)
    save(tmp_path, "plain", 300, model="vse", mrate=0.4)
    save_category(tmp_path, "mrl", 0.7, noise_rate=0.2)
    collect(tmp_path)
    assert ncbook.recorded(model="vse")["rsum"].tolist() == [300]
    assert ncbook.recorded("labels", method="mrl")["map_avg"].tolist() == [0.7]
    assert ncbook.recorded(method="l2rm").empty
    assert ncbook.recorded(no_such_column=1).empty
    with pytest.raises(ValueError, match="task='words': must be one of '', 'pairs', 'labels'"):
        ncbook.recorded("words")


def test_a_model_or_data_of_other_options_is_not_as_the_preset(tmp_path, monkeypatch):
    monkeypatch.setattr("ncbook.runs.RECORDED", tmp_path)
    save(tmp_path, "plain", 300, model="omit", mrate=0.4)
    save(tmp_path, "plain", 310, model="omit", mrate=0.4, model_options={"matching": "cam"})
    save(tmp_path, "plain", 320, model="omit", mrate=0.4, seed=1, data_options={"n_train": 300})
    collect(tmp_path)
    assert as_preset(ncbook.recorded())["rsum"].tolist() == [300]


def test_means_and_a_shown_table():
    runs = pd.DataFrame(
        {"method": ["a", "a", "b"], "mrate": [0.2, 0.2, 0.6], "protocol": "images", "rsum": [1.0, 3.0, 5.0]}
    )
    table = ncbook.means(runs, "method", "mrate")
    assert table.to_dict() == {
        "0.2": {"a": "2.0 ± 1.4 (2)", "b": "no record"},
        "0.6": {"a": "no record", "b": "5.0 (1)"},
    }
    assert list(ncbook.means(runs, ["method", "protocol"], "mrate", digits=0).index) == [
        ("a", "images"),
        ("b", "images"),
    ]
    page = ncbook.show(table, "own", "Measured", missing="–").to_html()
    assert '<table id="T_own" class="dataframe">' in page
    assert "<caption>Measured</caption>" in page
    best = ncbook.show(
        pd.DataFrame({"x": [1.25, 2.0]}), "n", format="{:.1f}", best=True, index=False
    ).to_html()
    assert "1.2<" in best
    assert "bold" in best
    assert "row_heading" not in best
