"""Damaged and hostile .npy files: every reader names the file, none advises to load with less care."""

import os
import pickle
import struct
import traceback

import numpy as np
import pytest

import nclib
from nclib.common.npy import read_npy


def with_header(text):
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def shaped(shape):
    return with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % shape)


def typed(descr, size):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (6, 3), }}"
    return with_header(header.encode()) + bytes(18 * size)


CONTENTS = {
    "pickled code": pickle.dumps(os.getcwd),
    "junk": b"\x07\xff" * 200,
    "nothing": b"",
    "an archive": b"PK\x03\x04" + b"\x07\xff" * 200,
    "an endless header": with_header(b"-" * 60_000 + b"1"),
    "a dimension of 31 digits": shaped(b"(9999999999999999999999999999999, 3)"),
    "10 TB": shaped(b"(1000000000000, 3)"),
    "brackets without end": with_header(b"[" * 5000),
    "text": typed("'<U4'", 16),
    "complex numbers": typed("'<c8'", 8),
    "numbers in groups": typed("('<f4', (2,))", 8),
}
READERS = {
    "read_npy": read_npy,
    "noise": lambda path: nclib.noise.Mismatch.from_file(path, np.arange(9)),
    "word vectors": lambda path: nclib.models.build(
        "omit", feature_dim=8, vocab_size=6, n_regions=4, embed_dim=4, word_vectors=str(path)
    ),
    "audit": lambda path: nclib.audit(images=path, captions=np.eye(3), progress=False),
    "categories": lambda path: nclib.data.load("category_file", root=path),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", CONTENTS)
def test_damaged_files_are_named_without_unsafe_advice(tmp_path, reader, content):
    path = tmp_path / ("x.npz" if reader == "categories" else "x.npy")
    path.write_bytes(CONTENTS[content])
    with pytest.raises(ValueError, match=r"x\.np") as caught:
        READERS[reader](path)
    shown = "".join(traceback.format_exception(caught.value))
    assert "unsafely" not in shown
    assert "fully trust" not in shown


def test_arrays_come_back_in_any_order_of_their_axes(tmp_path):
    array = np.arange(6.0).reshape(2, 3)
    for name, kept in (("c", array), ("f", np.asfortranarray(array)), ("zero", array[:0])):
        np.save(tmp_path / name, kept)
        np.testing.assert_array_equal(read_npy(tmp_path / f"{name}.npy"), kept)
    assert isinstance(read_npy(tmp_path / "f.npy", mapped=True), np.memmap)
    with pytest.raises(ValueError, match=r"none\.npy cannot be read .* No such file"):
        read_npy(tmp_path / "none.npy")
