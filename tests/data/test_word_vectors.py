"""Vectors of a vocabulary's words: spellings, gaps, other kinds of files, and the command."""

import numpy as np
import pytest
from data_convert import main
from word_vectors import read_vectors

from nclib.data.vocabulary import SPECIAL, Vocabulary

LINES = ["dog 1 2", "tshirt 3 4", "t-shirt 5 6", ". . . 7 8", "red 9 10", "café -1e-3 0.5", "Dog 0 0"]


def written(path, lines=LINES):
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    return path


def test_vectors_stand_at_the_ids_of_their_words(tmp_path):
    words = ["dog", "t-shirt", "t.shirt", "red/blue", "cat", "café", ". . ."]
    expected = [[1, 2], [5, 6], [3, 4], [9, 10], [np.nan] * 2, [-1e-3, 0.5], [7, 8]]
    for head in ([], ["7 2"]):  # a line with counts is passed over
        found = read_vectors(written(tmp_path / "v.txt", [*head, *LINES]), words)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["dog 1 2", "cat 3"], "line 2: has 1 numbers, earlier ones 2"),
        (["dog 1 x"], "line 1: holds what is not a finite number"),
        (["dog 1 inf"], "line 1: holds what is not a finite number"),
        (["dog"], "line 1: must be a word and its numbers"),
        (["horse 1 2"], "holds none of the 2 words"),
        (["dog " + "1 " * 5000], "line 1: must be a word and its numbers"),
    ],
)
def test_other_files_are_named_with_their_line(tmp_path, lines, said):
    with pytest.raises(ValueError, match=said):
        read_vectors(written(tmp_path / "v.txt", lines), ["dog", "cat"])


def test_the_command_writes_what_a_model_reads(tmp_path, capsys):
    root, out = tmp_path / "f30k_precomp", tmp_path / "weights" / "words.npy"
    root.mkdir()
    (root / "train_caps.txt").write_text("a dog\n")
    given = str(written(tmp_path / "v.txt"))

    def refused(*words, file=given, to=out):
        code = main(["vectors", "f30k", str(root), "--given", file, "--out", str(to), *words])
        return capsys.readouterr().err if code else ""

    assert "vocabulary f30k" in refused()
    Vocabulary([*SPECIAL, "cat", "dog"]).to_json(root / "f30k_precomp_vocab.json")
    assert not refused()
    found = np.load(out)
    assert np.isnan(found[:5]).all()
    np.testing.assert_array_equal(found[5], [1, 2])
    written(tmp_path / "v.txt", ["dog 3 4"])
    assert "there already" in refused()
    assert not refused("--replace")
    np.testing.assert_array_equal(np.load(out)[5], [3, 4])
    assert "must end in .npy" in refused(to=tmp_path / "words.txt")
    assert "missing.txt" in refused(file=str(tmp_path / "missing.txt"), to=tmp_path / "new.npy")
