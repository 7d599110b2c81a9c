"""Where arrays are worked on: NumPy here, PyTorch elsewhere, and an error before any work."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from lowbit.errors import ConfigError
from lowbit.refine.devices import Device


def test_on_the_processor_arrays_stay_numpys() -> None:
    device, array = Device("cpu"), np.arange(3, dtype=np.float64)

    assert device.put(array) is array
    assert device.get(array).dtype == np.float32
    assert device.get(array).tolist() == [0, 1, 2]


def test_without_pytorch_any_other_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(ConfigError) as raised:
        Device("cuda:0")

    assert "optim_device 'cuda:0' needs PyTorch, which is not installed" in str(raised.value)
    assert "pip install lowbit[torch], or take optim_device='cpu'" in str(raised.value)


class FakeTensor:
    """What PyTorch would give: an array that knows its device."""

    def __init__(self, array: np.ndarray, device: str) -> None:
        self.array, self.device = array, device

    def cpu(self) -> FakeTensor:
        return FakeTensor(self.array, "cpu")

    def numpy(self) -> np.ndarray:
        assert self.device == "cpu", "as PyTorch, only the processor's arrays become NumPy's"
        return self.array


def _fake_torch() -> types.ModuleType:
    def zeros(count: int, device: str) -> FakeTensor:
        if device != "cuda:0":
            raise AssertionError(f"Torch not compiled with {device}\nand a second line")
        return FakeTensor(np.zeros(count), device)

    torch = types.ModuleType("torch")
    torch.zeros = zeros
    torch.as_tensor = FakeTensor
    return torch


def test_arrays_go_to_the_device_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", _fake_torch())
    device = Device("cuda:0")
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T

    there = device.put(array)

    assert there.device == "cuda:0"
    assert there.array.flags.c_contiguous
    np.testing.assert_array_equal(device.get(there), array)


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", _fake_torch())

    with pytest.raises(ConfigError) as raised:
        Device("cuda:7")

    assert str(raised.value) == (
        "PyTorch has no device 'cuda:7' here: Torch not compiled with cuda:7; "
        "take optim_device='cpu'"
    )
