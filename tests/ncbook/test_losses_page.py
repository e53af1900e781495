import torch
import yaml
from ncbook import board, load_runs
from ncbook.chapters import losses
from ncbook.temperature import WITH_SOFTMAX, chosen
from records_made import collect, save

PLACE = {"dataset": "f8k", "model": "bow", "preset": "standard", "data_options": {"root": "."}, "mrate": 0.6}


def test_bounded_losses_give_up_a_pair_that_infonce_pulls_most() -> None:
    p = torch.tensor([0.005, 0.5], dtype=torch.float64)
    pulls = {name: losses.pull(loss, p) for name, (_, loss) in losses.LOSSES.items()}
    assert pulls["plain (infonce)"][0] > pulls["plain (infonce)"][1]
    assert all(low < 0.3 * half for name, (low, half) in pulls.items() if name != "plain (infonce)")


def test_averaged_networks_stand_beside_one_and_beside_methods_with_two(tmp_path) -> None:
    save(tmp_path, "plain", 150, **PLACE, loss="gce")
    for tau, networks, total in ((0.05, 2, 170), (0.1, 1, 165), (0.1, 2, 185), (0.1, 4, 190)):
        save(tmp_path, "plain", total, **PLACE, loss="gce", tau=tau, networks=networks)
    save(tmp_path, "crank", 197, **PLACE, networks=2)
    save(tmp_path, "sps", 169, **PLACE, single=120)
    collect(tmp_path)
    table = losses.averaged_table(load_runs(tmp_path)).data
    warm, two = "GCE, temperature 0.1", ", two averaged"
    expected = {"GCE": "150", f"GCE{two}": "170", warm: "165", f"{warm}{two}": "185"}
    expected |= {f"crank{two}": "197", "sps": "169"}
    known = table.loc[table["0.6"] != "not run", "0.6"]
    assert known.str.split(".").str[0].to_dict() == expected
    assert list(table.columns) == ["0", "0.4", "0.6"]
    assert losses.averaged_table(load_runs(tmp_path), "fashion44k") is None


def test_rows_that_the_grids_declare_and_no_one_ran_are_named(tmp_path) -> None:
    save(tmp_path, "sps", 169, **PLACE, single=120)
    save(tmp_path, "sps", 187, dataset="emoji", preset="quick", model="vse", mrate=0.6, single=120)
    collect(tmp_path)
    photographs, scenes = (losses.averaged_table(load_runs(tmp_path), d) for d in ("f8k", "emoji"))
    assert "preset quick, model vse, images exchanged" in scenes.caption
    for table in (photographs.data, scenes.data):
        assert (table.drop(index="sps") == "not run").all(axis=None)
        assert {"mscn", "crank, two averaged", "GCE, four averaged"} <= set(table.index)
    chosen = {f"{name}, temperature 0.14{two}" for name in ("GCE", "crank") for two in ("", ", two averaged")}
    assert set(losses.CONTROLS.values()) | chosen == set(photographs.data.index) - set(scenes.data.index)
    for (method, variant), name in losses.averaged_rows("emoji").items():
        options = yaml.safe_load("{" + variant.replace("=", ": ") + "}")
        assert any(blocks_of("averaged", method=method, dataset="emoji", **options)) or ", " not in name


def test_a_run_tested_in_its_warm_up_is_marked_in_both_tables(tmp_path) -> None:
    for tau, total in zip(losses.TEMPERATURES, (150, 160, 170, 165, 155, 140), strict=True):
        save(tmp_path, "l2rm", total, **PLACE, tau=tau, best=1)
    collect(tmp_path)
    runs = load_runs(tmp_path)
    assert losses.averaged_table(runs).data.loc["l2rm", "0.6"].endswith("†")
    assert all(losses.chosen_table(runs).data.loc["l2rm", "rate 0.6"].str.endswith("†"))


def test_the_head_says_what_two_averaged_networks_reach_on_each_set(tmp_path) -> None:
    for seed in (0, 1, 2):
        save(tmp_path, "plain", 150 + seed, **PLACE, seed=seed, loss="gce")
        save(tmp_path, "plain", 170 + seed, **PLACE, seed=seed, loss="gce", networks=2, single=150)
        for method, total in (("sps", 160), ("crank_plus", 180), ("cream", 169 + seed)):
            save(tmp_path, method, total + seed, **PLACE, seed=seed, single=120)
    collect(tmp_path)
    photographs, products = losses.headline(load_runs(tmp_path)).data.splitlines()[2:]
    assert "rSum 151.0 ± 1.0 (3) with one network, 171.0 ± 1.0 (3) with two" in photographs
    assert "1 of 10 are below this pair; above: `crank_plus`; level: `cream`" in photographs
    assert "rSum not run with one network, not run with two" in products


def test_a_temperature_is_chosen_on_validation_where_all_are_recorded(tmp_path) -> None:
    for tau, total in zip(losses.TEMPERATURES, (150, 160, 170, 165, 155, 140), strict=True):
        save(tmp_path, "plain", total, **PLACE, loss="gce", tau=tau)
        if tau < 0.1:
            save(tmp_path, "sps", total, **PLACE, tau=tau)
    save(tmp_path, "plain", 200, **{**PLACE, "mrate": 0.4}, loss="gce")
    collect(tmp_path)
    table = losses.chosen_table(load_runs(tmp_path)).data
    assert list(table.index) == list(WITH_SOFTMAX)
    assert table.loc["sps", "temperature"].tolist() == ["0.07", "not run"]
    assert set(table.loc["pcsr"]) == {"–", "not run"}
    temperature, *rates = table.loc["plain (gce)"].to_numpy().reshape(4, 2).tolist()  # published, chosen
    assert temperature == ["0.05", "0.1"]
    assert [[text.partition(" (")[0] for text in row] for row in rates] == [
        ["not run", "not run"], ["200.0", "not run"], ["150.0", "170.0"]
    ]  # fmt: skip


def test_runs_at_the_chosen_temperature_are_rows_of_their_own_where_asked(tmp_path) -> None:
    for tau, total in zip(losses.TEMPERATURES, (150, 160, 170, 165, 155, 140), strict=True):
        save(tmp_path, "plain", total, **PLACE, loss="gce", tau=tau)
    there = {**PLACE, "dataset": "fashion44k"}
    save(tmp_path, "plain", 320, **there, loss="gce")
    save(tmp_path, "plain", 330, **there, loss="gce", tau=0.1)
    save(tmp_path, "plain", 340, **there, loss="gce", tau=0.1, networks=2)
    collect(tmp_path)
    runs = load_runs(tmp_path)
    usual, every = board.scored(runs), board.scored(runs, temperatures=True)
    assert set(usual["label"]) == {"plain (gce)"}
    assert every.groupby(["dataset", "label"])["value"].mean().to_dict() == {
        ("f8k", "plain (gce)"): 150,
        ("f8k", "plain (gce), temperature chosen"): 170,
        ("fashion44k", "plain (gce)"): 320,
        ("fashion44k", "plain (gce), temperature chosen"): 330,
        ("fashion44k", "plain (gce), temperature chosen, averaged"): 340,
    }
    assert "better than the published one for 1 of 1 methods (1 of these" in losses.carried(runs).data
    rows = {head[1].text: cells[-2].link for head, cells in board.board_table(every).rows}
    assert rows["plain (gce), temperature chosen"] == rows["plain (gce)"]


def test_the_grids_hold_the_temperatures_that_the_records_choose() -> None:
    """Both grids were written by hand from what validation said."""
    found = chosen(load_runs())
    assert found
    for grid in ("temperature", "fashion44k"):
        blocks = yaml.safe_load((board.RECORDED.parent / "grids" / f"{grid}.yml").read_text("utf8"))
        declared = {}
        for block in blocks:
            if block["about"].startswith("temperature chosen"):
                each = [("plain", loss) for loss in as_list(block["loss"])] if "loss" in block else []
                each = each or [(method, "") for method in as_list(block["method"])]
                declared |= dict.fromkeys(each, block["tau"])
        assert {label: declared[WITH_SOFTMAX[label]] for label in found} == found


def blocks_of(grid, **given):
    """Blocks of a grid that hold a run with these values."""
    for block in yaml.safe_load((board.RECORDED.parent / "grids" / f"{grid}.yml").read_text("utf8")):
        if all(value in as_list(block.get(name)) for name, value in given.items()):
            yield block


def as_list(value):
    return value if isinstance(value, list) else [value]


def test_independent_errors_average_out_and_shared_ones_do_not() -> None:
    assert losses.gain_of_two().is_monotonic_increasing
    assert losses.gain_of_two(noise=0.0).tolist() == [1.0] * 4
