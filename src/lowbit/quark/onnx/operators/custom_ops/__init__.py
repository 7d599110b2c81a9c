"""The library that sessions register before they load one of Quark's models.

lowbit writes Quark's operators as functions into the model itself, so a session needs nothing.
Scripts register a library all the same: here is one that adds no operator.
"""

from __future__ import annotations

import atexit
import functools
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.onnx.operators.custom_ops.elf import MACHINES, shared_library

_COP_DOMAIN = "com.amd.quark"
_COP_QUANT_OP_NAME = "ExtendedQuantizeLinear"
_COP_DEQUANT_OP_NAME = "ExtendedDequantizeLinear"
_COP_IN_OP_NAME = "ExtendedInstanceNormalization"
_COP_LSTM_OP_NAME = "ExtendedLSTM"
_COP_BFP_OP_NAME = "BFPQuantizeDequantize"
_COP_MX_OP_NAME = "MXQuantizeDequantize"
_COP_VERSION = 1

_DEVICES = ("cpu", "gpu", "rocm", "cuda")
_LIBRARIES = ("custom_ops",)

__all__ = [
    "_COP_BFP_OP_NAME",
    "_COP_DEQUANT_OP_NAME",
    "_COP_DOMAIN",
    "_COP_IN_OP_NAME",
    "_COP_LSTM_OP_NAME",
    "_COP_MX_OP_NAME",
    "_COP_QUANT_OP_NAME",
    "_COP_VERSION",
    "get_library_path",
]


def get_library_path(device: str = "CPU", lib: str = "custom_ops") -> str:
    """Return the path of a library for ``SessionOptions.register_custom_ops_library``.

    It is the same for every device, and is there until the program ends.
    """
    if device.lower() not in _DEVICES:
        raise QuarkConfigError(f"device is {device!r}; expected one of {', '.join(_DEVICES)}")
    if lib not in _LIBRARIES:
        raise QuarkConfigError(f"lib is {lib!r}; expected {' or '.join(_LIBRARIES)}")
    return _written()


@functools.cache
def _written() -> str:
    """Write the library into a folder that goes with the program."""
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in MACHINES:
        raise NotSupportedError(
            f"there is no library for {sys.platform} on {machine}, and none is needed: models "
            "that lowbit writes run without one. Leave out register_custom_ops_library"
        )
    folder = tempfile.mkdtemp(prefix="lowbit-custom-ops-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "libcustom_ops.so")
    path.write_bytes(shared_library(machine))
    return str(path)
