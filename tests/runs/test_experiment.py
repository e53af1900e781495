"""One experiment for two tasks: parameters, noise that was asked for, names of one thing, records."""

import pytest
from ncbook.variant import variant
from small import SMALL, SMALL_LABELS

import nclib

OWN_FILES = {"root": "x", "build_vocabulary": True}  # files of one's own in that layout


@pytest.mark.parametrize(
    ("method", "dataset", "options", "rate"),
    [
        *(("plain", name, {}, 0.6) for name in ("emoji", "planted")),
        *(("plain", name, {"root": "x"}, 0.6) for name in ("f30k", "coco")),
        *(("plain", "f30k", OWN_FILES, 0.0), ("plain", "cc152k", {"root": "x"}, 0.0)),
        *(("mrl", "emoji_category", {}, 0.4), ("mrl", "wikipedia", {"root": "x"}, 0.4)),
        ("mrl", "category_file", {"root": "x"}, 0.0),
    ],
)
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_noise_is_drawn_for_benchmarks_only(method, dataset, options, rate, preset):
    given = {"dataset": dataset, "data_options": options, "preset": preset}
    assert nclib.resolve(method, **given).run.noise_rate == rate
    assert nclib.resolve(method, **given, noise_rate=0.2).run.noise_rate == 0.2


def test_a_run_says_first_how_much_was_moved(tmp_path, capsys):
    nclib.run("plain", **SMALL | {"mrate": 0.0}, out=tmp_path)
    assert capsys.readouterr().out.startswith("0 of 200 pairs moved: none asked for\n")
    pairs = nclib.run("plain", **SMALL, out=tmp_path)
    moved = pairs.noise["moved"]
    assert 0 < moved == round(200 * pairs.noise["true_rate"])
    said = f"{moved} of 200 pairs moved by images noise, rate 0.4, seed 0\n"
    assert capsys.readouterr().out.startswith(said)
    labels = nclib.run("mrl", **SMALL_LABELS, out=tmp_path)
    wrong = labels.noise["moved"]
    assert wrong / 180 == pytest.approx(labels.noise["true_rate"])  # of images and of texts
    said = f"{wrong} of 180 labels moved by symmetric noise, rate 0.5, seed 0\n"
    assert capsys.readouterr().out.startswith(said)


def test_auto_is_what_the_device_has_before_a_run_is_named(tmp_path):
    cpu, gpu = (nclib.resolve("l2rm", device=device, precision="auto") for device in ("cpu", "cuda:1"))
    assert (cpu.schedule.precision, gpu.schedule.precision) == ("fp32", "tf32")
    assert (variant(cpu.flat()), variant(gpu.flat())) == ("", "precision=tf32")  # rows do not mix
    assert nclib.resolve("l2rm", device="cuda").schedule.precision == "fp32"
    with pytest.raises(ValueError, match="precision='tf32': cpu has no TF32"):
        nclib.run("l2rm", device="cpu", precision="tf32", dataset="planted", out=tmp_path / "runs")
    assert not list(tmp_path.glob("runs/*"))
