"""Reports computed from records, the runs behind printed values_of, protocol lines, and the command line."""

import re
import shlex
from unittest.mock import Mock

import ncbook
import pandas as pd
import pytest
from ncbook import cli
from ncbook.compare import Difference
from ncbook.evidence import UNRUN, UNTESTED, VERDICTS
from ncbook.layouts import layout_of
from ncbook.match import RunSpec, printed_run
from ncbook.papers import rows_of
from ncbook.regime import ONLY_SHORT
from ncbook.runs import RECALLS, protocol_line
from records_made import lines, save, save_category

import nclib
import nclib.cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two methods at two rates, three seeds; a second model once; a run on a paper's data; labels."""
    folder = tmp_path_factory.mktemp("reported")
    for seed, gain in enumerate((100, 96, 110)):
        for method, total in (("plain", 200), ("l2rm", 200 + gain), ("rcl", 330)):
            save(folder, method, total, model="vse", mrate=0.6, seed=seed, protocol="images")
        save_category(folder, "uot_rcl", 0.5 + 0.01 * seed, noise_rate=0.4, seed=seed)
        save_category(folder, "mrl", 0.55, noise_rate=0.4, seed=seed)
    save(folder, "plain", 500, model="vse", mrate=0.0, seed=0)
    save(folder, "l2rm", 480, model="vse", mrate=0.0, seed=0)
    save(folder, "l2rm", 320, model="saf", mrate=0.6, seed=0, protocol="images")
    save(folder, "plain", 300, model="saf", mrate=0.6, seed=0, protocol="images")
    here = {"dataset": "f30k", "preset": "paper", "data_options": {"root": "data"}, "model": "sgr"}
    save(folder, "l2rm", 440.0, images=1000, mrate=0.6, seed=0, protocol="images", **here)
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    return ncbook.load_runs(folder)


def found(sheet):
    return {line["difference"]: line["found"] for line in lines(sheet)}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_answers_are_what_the_ledger_says_of_claims_with_a_number(runs):
    sheet, table = ncbook.answers_table("L2RM", runs), ncbook.ledger(runs, "L2RM").set_index("id")
    shown = {heads[0].text: cells for heads, cells in sheet.rows}
    words = [cells[-1].text for cells in shown.values()]
    assert words == sorted(words, key=VERDICTS.index)  # decided ones first
    assert words == list(table.loc[list(shown), "verdict"])
    for name, (claim, effect, measured, *_) in shown.items():
        assert (claim.text, effect.text) == (table.loc[name, "claim"], table.loc[name, "detail"])
        assert len(measured.text.splitlines()) == len(measured.drawings) > 0
    left_out = table.loc[(table["printed"] != "") & ~table.index.isin(list(shown))]
    assert set(left_out["verdict"]) <= {UNRUN, UNTESTED}
    assert all(name in sheet.lines[1] for name in left_out.index)
    sheets = [ncbook.printed_table(*key, runs) for key in ncbook.LAYOUTS if key[0] == "L2RM"]
    filled = sum(line["n"] != "0" for sheet in sheets for line in lines(sheet))
    assert f"measured on the paper's data: {filled} of " in sheet.lines[2]
    assert filled > 7
    gap = f"-28.0 {Difference((-30.0, -34.0, -20.0)).interval_text} (n = 3): l2rm − rcl, rate 0.6"
    assert shown["L18"][2].text.startswith(gap)  # to RCL: the least in line with "beats"


def printed_sum(table, method, rate, setting=""):
    rows = [r for r in rows_of("L2RM", table) if r["method"] == method and r["dataset"] == "Flickr30K"]
    rows = [r for r in rows if r["noise_rate"] == rate and setting in r["setting"]]
    values = {r["metric"]: float(r["value"]) for r in rows}
    return values.get("rsum") or sum(values[k] for k in RECALLS if k in values)


def test_a_difference_has_its_share_of_the_loss_as_printed_and_as_measured(tmp_path):
    for seed, (clean, low, own, other) in enumerate(
        [(400, 100, 220, 190), (420, 120, 240, 180), (410, 110, 230, 185)]
    ):
        at = {"model": "vse", "protocol": "images", "mrate": 0.6, "seed": seed}
        save(tmp_path, "plain", clean, model="vse", mrate=0.0, seed=seed)
        save(tmp_path, "plain", low, **at)
        save(tmp_path, "l2rm", own, **at)
        save(tmp_path, "l2rm", other, cost="cosine", **at)
    runs = ncbook.load_runs(tmp_path)
    sheet, column = ncbook.answers_table("L2RM", runs), ("share of the loss",)
    shares = {heads[0].text: cells[3].text for heads, cells in sheet.rows}
    low, clean = printed_sum("6", "SGR", "0.6"), printed_sum("7", "SGR", "0")
    gain = printed_sum("6", "L2RM-SGR", "0.6") - printed_sum("3", "L2RM w/o Cost Function", "0.6")
    assert shares["L07"] == f"printed {gain / (clean - low):.2f}\nhere {(30 + 60 + 45) / 3 / 300:.2f}"
    assert (column in sheet.columns, column in ncbook.answers_table("OMIT", runs).columns) == (True, False)


def test_a_report_leaves_out_short_runs_where_longer_ones_exist(tmp_path, runs):
    assert "emoji" in next(iter(found(ncbook.report_table("L2RM", runs))))
    place = {"dataset": "f8k", "model": "bow", "preset": "standard", "data_options": {"root": "."}}
    for seed, gain in enumerate((100, 96, 98)):
        for method, total in (("plain", 200), ("l2rm", 200 + gain), ("rcl", 330)):
            save(tmp_path, method, total, model="vse", mrate=0.6, seed=seed, protocol="images")
            if method != "rcl":
                save(tmp_path, method, total + 9, mrate=0.4, seed=seed, protocol="images", **place)
    own = ncbook.load_runs(tmp_path)
    names = list(found(ncbook.report_table("L2RM", own)))
    assert names == ["l2rm − plain, rate 0.4", "l2rm − rcl, emoji, quick, vse, rate 0.6"]
    said = re.findall(r"l2rm − (\w+).* 1 setting .*(above|below) zero in 1", ncbook.report_said("L2RM", own))
    assert said == [("plain", "above"), ("rcl", "below")]


def test_a_report_compares_by_seed_under_noise_alone(runs):
    said = found(ncbook.report_table("L2RM", runs))
    d = Difference((100.0, 96.0, 110.0))
    low, high = d.interval
    assert said["l2rm − plain, emoji, quick, vse, rate 0.6"] == (
        f"+102.0 [{low:+.1f}, {high:+.1f}], p = {d.p:.3f}"
    )
    assert said["l2rm − plain, emoji, quick, saf, rate 0.6"] == "+20.0, no interval"
    assert said["l2rm − rcl, emoji, quick, vse, rate 0.6"].startswith("-28.0 [")
    assert not any("rate 0," in name or name.endswith("rate 0") for name in said)


def test_a_report_of_labels_and_one_without_records(runs, nothing):
    said = found(ncbook.report_table("UOT-RCL", runs))
    assert said["uot_rcl − mrl, rate 0.4"].startswith("-0.040 [")
    assert said["uot_rcl − elrcmr"] == "no record"
    for paper in ncbook.PAPERS:
        empty = found(ncbook.report_table(paper, nothing))
        assert sum(text == "no record" for text in empty.values()) >= 2
    with pytest.raises(ValueError, match="paper must be one of L2RM"):
        ncbook.report_table("NCR", nothing)


@pytest.mark.parametrize("key", [("L2RM", "6"), ("L2RM", "3"), ("OMIT", "3"), ("UOT-RCL", "II")])
def test_measured_page_and_file_agree(key, runs):
    sheet = ncbook.bundled_table(*key, runs)
    page = [[cell.text for cell in cells] for _, cells in sheet.rows]
    rows = [line for line in lines(sheet) if line["n"] != "0"]
    assert len(page) == len(rows) < len(lines(sheet))
    digits = 3 if key[0] == "UOT-RCL" else 1
    for shown, line in zip(page, rows, strict=True):
        means = [v for k, v in line.items() if k.endswith(" mean")]
        on_page = [text.split()[0] for text in shown if re.match(r"\d+\.\d", text)]
        assert sorted(on_page) == sorted(f"{float(v):.{digits}f}" for v in means if v)
        assert on_page
        assert ("" in means) == ("not run" in shown)
        assert line["records"]
    (said,) = (line for line in sheet.lines if line.startswith("Not run: "))
    assert all(line["run"] in said for line in lines(sheet) if line["n"] == "0")


def test_protocol_line_names_data_noise_split_networks_and_selection(runs):
    part = runs.retrieval[(runs.retrieval["model"] == "vse") & (runs.retrieval["mrate"] == 0.6)]
    line = protocol_line(part)
    for fact in ("emoji (checksum d)", "0.6 0, 0.6 1, 0.6 2", "single", "200 validation", "500 test"):
        assert fact in line
    many = pd.concat([part, part.assign(**{"noise.checksum": "another00"}, seed=9)])
    assert "and 1 more, see CSV" in protocol_line(many)
    two = part.assign(**{"single.rsum": [1.0 if m == "rcl" else None for m in part["method"]]})
    assert "mean similarity: rcl; others single" in protocol_line(two)
    assert "label noise symmetric (noise checksums n)" in protocol_line(runs.category)


BERT = {"pieces": "weights/bert-base-uncased", "text": "bert", "text_folder": "weights/bert-base-uncased"}
BERT |= {"finetune": True}
GLOVE = {"word_vectors": "weights/glove_coco.npy"}
F30K, COCO = {"dataset": "Flickr30K"}, {"dataset": "MS-COCO"}
GRU, WITH_BERT, GRID = ({"backbone": b} for b in ("BUTD + BiGRU", "BUTD + BERT", "ResNet-152 + BiGRU"))
RUNS = [  # table, row and its run; settings at certain rates, models trained apart, and encoders of the row
    ("L2RM 7", "L2RM-SGR", F30K, ("l2rm", "sgr", {"mask": False})),
    ("L2RM 6", "RCL-SGRAF", F30K, ("rcl", "saf+sgr")),
    ("L2RM 6", "DECL-SGR", F30K | {"noise_rate": "0.4"}, ("decl", "sgr")),
    ("L2RM 6", "DECL-SGR", F30K | {"noise_rate": "0.8"}, ("decl", "sgr", {"warmup_epochs": 2})),
    ("L2RM 6", "DECL-SGR", COCO | {"noise_rate": "0.4"}, ("decl", "sgr")),
    ("L2RM 6", "DECL-SGR", COCO | {"noise_rate": "0.8"}, ("decl", "sgr", {"warmup_epochs": 1})),
    ("OMIT 1", "SCAN", F30K, ("plain", "scan", {"direction": "t2i+i2t"})),
    ("OMIT 2", "VSRN", {}, ("plain", "vsrn+vsrn")),
    ("OMIT 1", "SBE", GRU | COCO, ("plain", "sbe", GLOVE)),
    ("OMIT 2", "OMIT", GRU, ("plain", "omit", GLOVE)),
    ("OMIT 2", "OMIT", WITH_BERT, ("plain", "omit", BERT)),
    ("OMIT 1", "HREM", GRU, ("plain", "hrem")),
    ("OMIT 1", "HREM", WITH_BERT, ("plain", "hrem", BERT)),
    ("OMIT 1", "TERAN", {}, ("plain", "teran+teran", BERT | {"boxes": True, "text_rate": 1.0})),
    ("OMIT 2", "CHAN", {}, "'pooling': 'mean', 'attend': False"),
    ("OMIT 4", "Prompt", GRID, "'pixels': 'square224', 'image_folder': 'weights/resnet-152'"),
    ("OMIT 2", "SBE", GRID, "SBE: the one published command is for regions"),
    ("UOT-RCL III", "CLIP (ViT-B/16) + UOT-RCL", {}, "whose split was never published"),
    ("UOT-RCL II", "GSS-SL", {}, "stands in, under its own name"),
]


@pytest.mark.parametrize(("table", "method", "where", "expected"), RUNS)
def test_a_printed_row_has_the_run_of_its_paper(table, method, where, expected):
    key = table.split()
    rows = [r for r in rows_of(*key) if r["method"] == method and where.items() <= r.items()]
    (found,) = {str(printed_run(layout_of(*key), row)) for row in rows}
    assert expected in found if isinstance(expected, str) else found == str(RunSpec(*expected))


def test_printed_values_without_a_run_are_counted():
    assert RunSpec("plain", "omit", GLOVE).variant == ""  # what the paper's runs usually have
    memory = [r for r in rows_of("REPAIR", "VI") if r["bank_size"] == "8192" and "memory" in r["quantity"]]
    runs = [printed_run(layout_of("REPAIR", "VI"), row) for row in memory if row["backbone"] == "VSE∞"]
    assert runs == [RunSpec("repair", "vse_inf", {"bank_size": 8192})]
    table = ncbook.unfilled_table("OMIT")
    assert sum(int(heads[0].text) for heads, _ in table.rows) == 789 - 676


def test_rows_of_clip_are_never_filled_by_frozen_features(tmp_path):
    where = {"noise_rate": 0.2, "preset": "paper", "data_options": {"root": "x"}}
    for method in ("zero_shot", "contrastive_heads", "uot_rcl"):
        for dataset in ("xmedianet", "category_file"):
            save_category(tmp_path, method, 0.5, dataset=dataset, **where)
    sheet = ncbook.printed_table("UOT-RCL", "III", ncbook.load_runs(tmp_path))
    assert {row["n"] for row in lines(sheet)} == {"0"}


def test_the_memory_of_a_bank_is_printed_in_its_unit(tmp_path):
    where = {"dataset": "f30k", "preset": "paper", "data_options": {"root": "x"}, "protocol": "captions"}
    for model, mb in (("sgr", 1900.0), ("vse_inf", 80.5)):
        for rate in (0.2, 0.4):  # that of 0.4 counts
            found = {"bank_mb": mb if rate == 0.4 else 1.0}
            save(tmp_path, "repair", 500, diagnostics=found, model=model, mrate=rate, images=1000, **where)
    sheet = ncbook.printed_table("REPAIR", "VI", ncbook.load_runs(tmp_path))
    assert "2 of 8 printed values were measured" in " ".join(sheet.lines)
    own = {row["backbone"]: row for row in lines(sheet) if row["n"] == "1"}
    assert own["SGR"]["difference"] == f"{1.9 - 1.85:.4f}"
    assert own["VSE∞"]["mean"] == "80.5000"


def test_a_rerun_is_a_command_that_can_be_run(tmp_path, monkeypatch):
    (one, *_), _ = ncbook.reruns("L2RM", "3", row="L2RM w/o Cost Function")
    seen = {}
    record = Mock(folder="runs")
    monkeypatch.setattr(nclib.runs.Experiment, "run", lambda self, s, **k: seen.update(k, s=s) or record)
    program, *words = shlex.split(one.command("/my data", seed=3))
    assert (program, nclib.cli.main(words)) == ("nclib", 0)
    asked = {**one.arguments, "seed": 3, "data_options": {"root": "/my data"}}
    assert seen == {"s": nclib.resolve(**asked), "progress": True}
    assert asked["cost"] == "cosine"
    omit, _ = ncbook.reruns("OMIT", "3", row="CAM")
    grid, regions = (run.arguments["model_options"] for run in omit)
    vectors = "weights/glove_f30k.npy"
    assert regions == {"matching": "partial_cam", "word_vectors": vectors}
    own = {"image_folder": "/my data/weights/resnet-152", "word_vectors": f"/my data/{vectors}"}
    assert omit[0].parts("/my data")[0]["model_options"] == grid | own
    # what is made by this call fills exactly the row that it was listed for
    given = {**one.arguments, "data_options": {"root": "d"}}
    save(tmp_path, given.pop("method"), 300, images=1000, **given)
    sheet = ncbook.printed_table("L2RM", "3", ncbook.load_runs(tmp_path))
    assert {r["method"] for r in lines(sheet) if r["n"] == "1"} == {"L2RM w/o Cost Function"}


@pytest.mark.slow
def test_command_lists_reruns_and_recomputes_claims(folder, runs, tmp_path, capsys):
    assert cli.main(["rerun", "L2RM", "6", "--rate", "0.6", "--data", "Flickr30K", "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("nclib run ") == 34  # SGRAF's rows are two runs each
    assert out.count("# then nclib.combine(") == 6
    target = tmp_path / "ledger.csv"
    assert cli.main(["claims", "--folder", str(folder), "--csv", str(target), "--paper", "L2RM"]) == 0
    table = ncbook.ledger(runs, "L2RM")
    assert f"{len(table)} claims, {len(runs)} recorded runs" in capsys.readouterr().out
    assert pd.read_csv(target)["verdict"].tolist() == table["verdict"].tolist()
    assert cli.main(["rerun", "L2RM", "5"]) == 2


def test_a_sweep_is_drawn_from_runs_that_change_that_option_alone(tmp_path):
    where = {"mrate": 0.2, "protocol": "images"}
    for seed in (0, 1):
        save(tmp_path, "l2rm", 300 + seed, seed=seed, model="vse", **where)
        save(tmp_path, "l2rm", 240 + seed, seed=seed, rho=0.5, model="vse", **where)
    save(tmp_path, "l2rm", 100, seed=0, rho=0.5, mask=False, model="vse", **where)

    def drawn(rate=0.2):
        runs = ncbook.load_runs(tmp_path)
        return ncbook.sweep_figure(runs, "rho", xlabel="mass", method="l2rm", mrate=rate)

    for axis in (figure := drawn()).axes:
        assert axis.get_legend_handles_labels()[1] == ["R@10", "R@5", "R@1"]
        for container in axis.containers:
            assert list(container.lines[0].get_xdata()) == [0.1, 0.5]
            first, second = container.lines[0].get_ydata()
            assert first > second > 0.7 * first
        assert [line.get_xdata()[0] for line in axis.lines if line.get_ls() == ":"] == [0.1]  # the preset's
    assert ONLY_SHORT in figure.get_suptitle()
    assert [axis.texts[0].get_text() for axis in drawn(rate=0.6).axes] == ["no recorded runs"] * 2
    place = {"dataset": "f8k", "preset": "standard", "data_options": {"root": "."}, "model": "bow"}
    for rho in (0.5, 0.2):
        save(tmp_path, "l2rm", 90, rho=rho, **place, **where)
    assert "Flickr8K, standard, bow, 1 seed" in drawn().get_suptitle()
    assert list(drawn().axes[0].containers[0].lines[0].get_xdata()) == [0.2, 0.5]
