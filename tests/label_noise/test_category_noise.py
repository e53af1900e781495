"""Label noise as an artefact: exact counts, independent draws, files, and the published pitfalls."""

import json

import numpy as np
import pytest

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
    assert noise.describe() == (
        "symmetric label noise 0.8, drawn for images and texts apart, seed 2, 55.0 % of labels wrong, "
        + noise.checksum[:12]
    )
    assert len({noise, draw()}) == 2  # told apart without comparing arrays


def test_asymmetric_noise_sends_a_class_to_one_other():
    noise = draw(1.0, protocol="asymmetric")
    for k in range(10):
        assert len(set(noise.image_labels[k == TRUTH])) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [({"protocol": "uniform"}, "protocol"), ({"scope": "image"}, "scope"), ({"rate": 2}, "rate")],
)
def test_bad_requests_name_the_argument(options, word):
    with pytest.raises(ValueError, match=word):
        draw(**options)


def test_published_file(tmp_path):
    path = tmp_path / "noise_labels_0.4_sym.json"
    made = draw()
    path.write_text(json.dumps([made.image_labels.tolist(), made.text_labels.tolist()]))
    noise = LabelNoise.from_file(path, TRUTH, n_classes=10)
    assert noise.checksum == made.checksum
    assert "file" in noise.describe()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[1, 2]]", "two lists"),
        ("[[1, 2], [3, 4]]", r"images must be integers, \(2173,\)"),
        (json.dumps([[0] * 2172 + [10], [0] * 2173]), "at most 9, got 0 to 10"),
        (json.dumps([[0] * 2172 + [0.5], [0] * 2173]), "images must be integers"),
        (json.dumps([[0] * 2173, [-1] + [0] * 2172]), "texts .* got -1 to 0"),
        ("nonsense", "two lists"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message):
    path = tmp_path / "noise.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        LabelNoise.from_file(path, TRUTH, n_classes=10)
