"""Label noise as an artefact: exact counts, independent draws, files, and the published pitfalls."""

import json

import numpy as np
import pytest
from refusals import refused

from nclib.noise import LabelNoise

TRUTH = np.arange(2173) % 10


def draw(rate=0.4, **options):
    return LabelNoise.draw(TRUTH, rate, **{"n_classes": 10, "seed": 0, **options})


@pytest.mark.parametrize(("rate", "share"), [(0.2, 0.18), (0.4, 0.36), (0.6, 0.54), (0.8, 0.72)])
def test_inclusive_noise_leaves_a_tenth_of_the_redrawn_labels_right(rate, share):
    noise = draw(rate)
    assert noise.true_rate == pytest.approx(share, abs=0.02)
    changed = np.floor(rate * len(TRUTH))
    assert (noise.image_labels != TRUTH).sum() <= changed
    assert set(noise.image_labels) <= set(range(10))


def test_exclusive_noise_is_exact():
    noise = draw(0.6, protocol="symmetric_exclusive")
    assert (noise.image_labels != TRUTH).sum() == int(0.6 * len(TRUTH))
    assert (noise.text_labels != TRUTH).sum() == int(0.6 * len(TRUTH))
    assert round(noise.true_rate * 2 * len(TRUTH)) == 2 * int(0.6 * len(TRUTH))


def test_modalities_are_drawn_apart_unless_asked_for_pairs():
    assert not np.array_equal(draw().image_labels, draw().text_labels)
    both = draw(scope="pair")
    assert np.array_equal(both.image_labels, both.text_labels)
    assert np.array_equal(both.image_labels, draw().image_labels)
    right = (draw(0.8).image_labels == TRUTH) | (draw(0.8).text_labels == TRUTH)
    assert right.mean() == pytest.approx(1 - 0.72**2, abs=0.03)


def test_seed_and_rate_decide_everything():
    assert draw().checksum == draw().checksum
    assert len({draw(seed=s).checksum for s in range(3)} | {draw(0.2).checksum}) == 4
    assert np.array_equal(draw(0.0).image_labels, TRUTH)
    assert draw(1.0).true_rate == pytest.approx(0.9, abs=0.03)


def test_a_seed_names_the_same_labels_for_ever():
    noise = LabelNoise.draw(np.arange(10) % 5, 0.8, n_classes=5, seed=2)
    assert noise.image_labels.tolist() == [1, 3, 3, 3, 0, 3, 3, 3, 3, 4]
    assert noise.text_labels.tolist() == [4, 1, 2, 4, 4, 3, 4, 2, 3, 4]
    assert [word for word in ("symmetric", "0.8", "seed 2", "55.0 %") if word not in noise.describe()] == []
    assert len({noise, draw()}) == 2  # told apart without comparing arrays


def test_asymmetric_noise_sends_a_class_to_one_other():
    noise = draw(1.0, protocol="asymmetric")
    for k in range(10):
        assert len(set(noise.image_labels[k == TRUTH])) == 1


@pytest.mark.parametrize(("name", "value"), [("protocol", "uniform"), ("scope", "image"), ("rate", 2)])
def test_bad_requests_name_the_argument(name, value):
    refused(ValueError, lambda: draw(**{name: value}), f"{name}={value!r}")


def test_published_file(tmp_path):
    path = tmp_path / "noise_labels_0.4_sym.json"
    made = draw()
    path.write_text(json.dumps([made.image_labels.tolist(), made.text_labels.tolist()]))
    noise = LabelNoise.from_file(path, TRUTH, n_classes=10)
    assert noise.checksum == made.checksum
    assert "file" in noise.describe()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[[1, 2]]", ["two lists"]),
        ("[[1, 2], [3, 4]]", ["images", "integers", "(2173,)"]),
        (json.dumps([[0] * 2172 + [10], [0] * 2173]), ["images", "at most 9", "0 to 10"]),
        (json.dumps([[0] * 2172 + [0.5], [0] * 2173]), ["images", "integers"]),
        (json.dumps([[0] * 2173, [-1] + [0] * 2172]), ["texts", "-1 to 0"]),
        ("nonsense", ["two lists"]),
    ],
)
def test_bad_files_are_refused(tmp_path, content, named):
    path = tmp_path / "noise.json"
    path.write_text(content)
    refused(ValueError, lambda: LabelNoise.from_file(path, TRUTH, n_classes=10), *named)
