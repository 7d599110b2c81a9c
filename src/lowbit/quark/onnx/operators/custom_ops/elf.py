"""The smallest shared library that onnxruntime registers: one function that returns success.

onnxruntime opens a custom-operator library and calls ``RegisterCustomOps``. Ours has nothing to
register, so it is put together here byte by byte (System V ABI, ELF-64), with no compiler.

The file is mapped twice: once to be read and executed, once to be written, because loaders
write into the table of dynamic entries.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

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
    symbols_at = start + 24  # behind the hash table
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
