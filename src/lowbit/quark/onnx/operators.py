"""Quark's custom operators: their names, and the library that sessions register before they load one.

lowbit writes Quark's operators as functions into the model itself, so a session needs nothing.
Scripts register a library all the same: here is one that adds no operator. onnxruntime opens a
custom-operator library and calls ``RegisterCustomOps``. Ours is put together byte by byte (System V
ABI, ELF-64), with no compiler: one function that returns success. The file is mapped twice: once to be
read and executed, once to be written, because loaders write into the table of dynamic entries.
"""

from __future__ import annotations

import atexit
import functools
import platform
import struct
import sys
from collections.abc import Mapping
from types import MappingProxyType

from lowbit.files import TemporaryFolder
from lowbit.ops.quantizing import AMD_DOMAIN
from lowbit.quark.errors import NotSupportedError, QuarkConfigError

_COP_DOMAIN = AMD_DOMAIN
_COP_QUANT_OP_NAME = "ExtendedQuantizeLinear"
_COP_DEQUANT_OP_NAME = "ExtendedDequantizeLinear"
_COP_IN_OP_NAME = "ExtendedInstanceNormalization"
_COP_LSTM_OP_NAME = "ExtendedLSTM"
_COP_BFP_OP_NAME = "BFPQuantizeDequantize"
_COP_MX_OP_NAME = "MXQuantizeDequantize"
_COP_VERSION = 1

_DEVICES = ("cpu", "gpu", "rocm", "cuda")
_LIBRARIES = ("custom_ops",)

# The names below this one are rows of a table.
__path__: list[str] = []
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
    folder = TemporaryFolder()
    atexit.register(folder.remove)
    path = folder.path / "libcustom_ops.so"
    path.write_bytes(shared_library(machine))
    return str(path)


MACHINES: Mapping[str, tuple[int, bytes]] = MappingProxyType(
    {
        "x86_64": (62, bytes.fromhex("31c0c3")),  # xor eax, eax; ret
        "aarch64": (183, bytes.fromhex("000080d2c0035fd6")),  # mov x0, #0; ret
    }
)
"""By platform.machine(): its number in ELF, and a function that returns a null pointer."""

_SYMBOL = b"RegisterCustomOps"
_STRINGS = b"\0" + _SYMBOL + b"\0"
_PAGE = 0x10000  # the largest of any Linux machine
_HEADER, _SEGMENT = 64, 56
_READ_EXECUTE, _READ_WRITE = 5, 6


def shared_library(machine: str) -> bytes:
    """Return the bytes of the library for a machine."""
    number, code = MACHINES[machine]
    start = _HEADER + 4 * _SEGMENT
    symbols_at = start + 24  # after the hash table
    strings_at = symbols_at + 2 * 24
    code_at = _aligned(strings_at + len(_STRINGS), 16)
    dynamic_at = _aligned(code_at + len(code), 16)
    entries = (
        (4, start),  # DT_HASH
        (5, strings_at),  # DT_STRTAB
        (6, symbols_at),  # DT_SYMTAB
        (10, len(_STRINGS)),  # DT_STRSZ
        (11, 24),  # DT_SYMENT
        (0, 0),
    )
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    end = dynamic_at + len(dynamic)
    image = bytearray(end)
    image[:_HEADER] = _header(number)
    image[_HEADER:start] = b"".join(
        (
            _segment(1, _READ_EXECUTE, 0, 0, dynamic_at, _PAGE),  # PT_LOAD
            _segment(1, _READ_WRITE, dynamic_at, _PAGE + dynamic_at, len(dynamic), _PAGE),
            _segment(2, _READ_WRITE, dynamic_at, _PAGE + dynamic_at, len(dynamic), 8),  # dynamic
            _segment(0x6474E551, _READ_WRITE, 0, 0, 0, 16),  # a stack that is not executable
        )
    )
    # One bucket, which holds symbol 1; its chain ends there.
    image[start:symbols_at] = struct.pack("<6I", 1, 2, 1, 0, 0, 0)
    image[symbols_at:strings_at] = bytes(24) + _function(code_at, len(code))
    image[strings_at : strings_at + len(_STRINGS)] = _STRINGS
    image[code_at : code_at + len(code)] = code
    image[dynamic_at:end] = dynamic
    return bytes(image)


def _header(machine: int) -> bytes:
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little-endian
    fields = (3, machine, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 4, 64, 0, 0)
    return identity + struct.pack("<HHIQQQIHHHHHH", *fields)


def _segment(kind: int, flags: int, offset: int, address: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)


def _function(address: int, size: int) -> bytes:
    """Return the symbol: a global function, in some section (which one does not matter)."""
    return struct.pack("<IBBHQQ", 1, 0x12, 0, 1, address, size)


def _aligned(position: int, size: int) -> int:
    return -(-position // size) * size
