"""The library for sessions: registered by onnxruntime, made without a compiler."""

from __future__ import annotations

import ctypes
import pathlib

import numpy as np
import onnxruntime as ort
import pytest
from helpers.quark_helpers import BareReader, quiet, run_python
from helpers.small_models import small_cnn, small_feeds

from lowbit.quark.errors import NotSupportedError
from lowbit.quark.onnx import ModelQuantizer, get_library_path, operators
from lowbit.quark.onnx.operators import MACHINES, shared_library


@pytest.mark.parametrize("device", ["CPU", "cpu", "GPU", "ROCM", "cuda"])
def test_a_session_takes_the_library_and_a_model(device: str) -> None:
    model = ModelQuantizer(quiet("BF16")).quantize_model(
        small_cnn(), None, BareReader(small_feeds(2))
    )
    options = ort.SessionOptions()

    options.register_custom_ops_library(get_library_path(device))

    session = ort.InferenceSession(model.SerializeToString(), options)
    plain = ort.InferenceSession(model.SerializeToString())
    feed = small_feeds(1)[0]
    np.testing.assert_array_equal(session.run(None, feed)[0], plain.run(None, feed)[0])


def test_the_one_function_says_success() -> None:
    library = ctypes.CDLL(get_library_path())
    library.RegisterCustomOps.restype = ctypes.c_void_p

    assert library.RegisterCustomOps(None, None) is None
    assert pathlib.Path(get_library_path()).stat().st_size < 1024


@pytest.mark.parametrize("machine", MACHINES)
def test_segments_lie_inside_the_file_and_nothing_is_both_written_and_executed(machine) -> None:
    data = shared_library(machine)

    for index in range(int.from_bytes(data[56:58], "little")):
        start = 64 + 56 * index
        flags = int.from_bytes(data[start + 4 : start + 8], "little")
        fields = [
            int.from_bytes(data[i : i + 8], "little") for i in range(start + 8, start + 56, 8)
        ]
        offset, address, _, size, _, align = fields
        assert offset + size <= len(data)
        assert offset % align == address % align
        assert flags & 3 != 3


def test_the_file_goes_with_the_program(tmp_path: pathlib.Path) -> None:
    code = "from lowbit.quark.onnx import get_library_path as p; import os; print(os.path.exists(p()), p())"

    done = run_python("-c", code, cwd=tmp_path)

    there, path = done.stdout.split()
    assert there == "True"
    assert not pathlib.Path(path).exists()


def test_other_systems_are_told_that_they_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators.platform, "machine", lambda: "riscv64")
    operators._written.cache_clear()

    with pytest.raises(NotSupportedError, match="none is needed"):
        get_library_path()

    operators._written.cache_clear()


def test_unknown_devices_are_named() -> None:
    with pytest.raises(ValueError, match="device is 'NPU'"):
        get_library_path("NPU")
