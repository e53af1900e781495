"""A result is never another run's: files by content, records compared with what was asked, session state."""

from __future__ import annotations

import os
from unittest.mock import Mock

import pytest
import torch
from small import QUIET

import nclib
from nclib.common import files
from nclib.runs import Record


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Record:
    return nclib.run("plain", **QUIET, out=tmp_path_factory.mktemp("made"))


# -- files that decide numbers --------------------------------------------------------------------------


def test_the_digest_of_a_large_file_is_made_once_and_again_after_a_change(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SMALL", 4)
    monkeypatch.setattr(files, "SETTLED", -1.0)
    path, whole = tmp_path / "large", files.digest
    path.write_bytes(b"12345678")
    counted = Mock(wraps=whole)
    monkeypatch.setattr(files, "digest", counted)
    assert files.content_digest(path) == files.content_digest(path) == whole(b"12345678")
    assert [call.args for call in counted.mock_calls].count((path,)) == 1
    os.utime(path, ns=(1, path.stat().st_mtime_ns))  # looked at, not changed
    time = path.stat().st_mtime_ns
    path.write_bytes(b"87654321")  # of the same size, and of the same time
    os.utime(path, ns=(time, time))
    assert files.content_digest(path) == whole(b"87654321")
    (kept,) = (tmp_path / "cache" / "digests").iterdir()
    true = kept.read_text()
    for damage in ("damaged", ("1" if true[0] == "0" else "0") + true[1:], true.split()[0]):
        kept.write_text(damage)
        assert files.content_digest(path) == whole(b"87654321")
        assert kept.read_text() == true


# -- what changes numbers -------------------------------------------------------------------------------


def test_the_state_of_the_session_changes_no_number_and_comes_back(made, tmp_path):
    matmul = torch.backends.mkldnn.matmul.fp32_precision
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        with torch.inference_mode(), torch.autocast("cpu"):
            record = nclib.run("plain", **QUIET, out=tmp_path)
            assert torch.is_inference_mode_enabled()
            assert torch.is_autocast_enabled("cpu")
        state = torch.get_float32_matmul_precision(), torch.get_default_dtype()
        assert (*state, torch.get_default_device().type) == ("medium", torch.float64, "meta")
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.matmul.fp32_precision = matmul
    assert (record.name, record.metrics) == (made.name, made.metrics)
    said = {"matmul_precision": "highest", "matmul_tf32": False, "cudnn_tf32": True}
    assert record.environment["numbers"] == said | {"default_dtype": "float32"}
