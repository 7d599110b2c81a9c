"""Devices for arrays: NumPy on the processor, PyTorch on anything else."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.errors import ConfigError
from lowbit.numerics.formats import FloatArray

Array = Any


class Device:
    """Moves arrays to a device and back; raises at once if it is not there."""

    def __init__(self, name: str) -> None:
        """Take ``cpu``, or what PyTorch calls a device (``cuda:0``, also for AMD)."""
        self._torch: Any = None
        self._name = name
        if name == "cpu":
            return
        try:
            import torch
        except ImportError as error:
            raise ConfigError(
                f"optim_device {name!r} needs PyTorch, which is not installed: "
                "pip install lowbit[torch], or take optim_device='cpu'"
            ) from error
        try:
            torch.zeros(1, device=name)
        except Exception as error:  # PyTorch raises several kinds, AssertionError among them
            raise ConfigError(
                f"PyTorch has no device {name!r} here: {str(error).splitlines()[0]}; "
                "take optim_device='cpu'"
            ) from error
        self._torch = torch

    def put(self, array: FloatArray) -> Array:
        """Return the array on the device."""
        if self._torch is None:
            return array
        return self._torch.as_tensor(np.ascontiguousarray(array), device=self._name)

    def get(self, array: Array) -> FloatArray:
        """Return an array of the device as NumPy's."""
        return np.asarray(array if self._torch is None else array.cpu().numpy(), np.float32)
