import torch
from ncbook import load_runs
from ncbook.chapters import losses
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
    table = losses.averaged_table(load_runs(tmp_path)).data["0.6"]
    assert table.str.split(".").str[0].to_dict() == {
        "GCE": "150",
        "GCE, two averaged": "170",
        "GCE, temperature 0.1": "165",
        "GCE, temperature 0.1, two averaged": "185",
        "GCE, temperature 0.1, four averaged": "190",
        "crank, two averaged": "197",
        "sps": "169",
    }
    assert losses.averaged_table(load_runs(tmp_path), "fashion44k") is None


def test_a_temperature_is_chosen_on_validation_where_all_are_recorded(tmp_path) -> None:
    for tau, total in zip(losses.TEMPERATURES, (150, 160, 170, 165, 155, 140), strict=True):
        save(tmp_path, "plain", total, **PLACE, loss="gce", tau=tau)
        if tau < 0.1:
            save(tmp_path, "sps", total, **PLACE, tau=tau)
    save(tmp_path, "plain", 200, **{**PLACE, "mrate": 0.4}, loss="gce")
    collect(tmp_path)
    table = losses.chosen_table(load_runs(tmp_path)).data
    assert list(table.index) == ["plain (gce)"]
    assert table.loc["plain (gce)"].to_dict() == {
        ("temperature", "published"): "0.05",
        ("temperature", "chosen"): "0.1",
        ("rate 0", "published"): "not run",
        ("rate 0", "chosen"): "not run",
        ("rate 0.4", "published"): "200.0",
        ("rate 0.4", "chosen"): "not run",
        ("rate 0.6", "published"): "150.0",
        ("rate 0.6", "chosen"): "170.0",
    }


def test_independent_errors_average_out_and_shared_ones_do_not() -> None:
    assert losses.gain_of_two().is_monotonic_increasing
    assert losses.gain_of_two(noise=0.0).tolist() == [1.0] * 4
