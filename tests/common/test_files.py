"""The atomic write and the digest."""

import hashlib

import numpy as np
import pytest

from nclib.common.files import digest, replacing, write_atomically


@pytest.mark.parametrize("data", ["zwölf\r\n", b"\x00\x01", [b"ab", memoryview(b"c")], []])
def test_content_arrives_unchanged(data, tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, data)
    wanted = data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else b"".join(data)
    assert path.read_bytes() == wanted
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("x")]
)
def test_a_failed_block_leaves_the_old_file(error, tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write():
        with replacing(path) as file:
            file.write(b"new")
            assert path.read_text() == "old"
            raise error

    with pytest.raises(type(error)) as caught:
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(error, OSError):
        assert "No space left on device; what was there before is kept" in str(caught.value)
        assert str(path) in str(caught.value)


def test_digests_of_bytes_text_and_files_are_those_of_sha256sum(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    wanted = hashlib.sha256(b"abc").hexdigest()
    assert {digest(b"abc"), digest("abc"), digest(tmp_path / "file")} == {wanted}


def test_digests_that_records_hold():
    """Checksums of data and noise in stored records were made by this rule."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    parts = hashlib.sha256(b"<f4(2, 3)" + array.tobytes() + b"2:ab1:7").hexdigest()
    assert digest([array, "ab", 7]) == parts
    assert digest(array) == digest([array]) == digest([np.asfortranarray(array)])
    assert digest(array) == digest(array.astype(">f4"))
