"""The machine the figures were taken on, in words."""

from __future__ import annotations

import os
import pathlib
import platform


def describe() -> dict[str, str | int]:
    """Return what matters of this machine to a reader of its figures."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    memory = pathlib.Path("/proc/meminfo").read_text()
    flags = set(field(info, "flags").split())
    fast = [
        name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if name in flags
    ]
    return {
        "processor": field(info, "model name") or platform.processor(),
        "cores": os.cpu_count() or 1,
        "threads used": len(os.sched_getaffinity(0)),
        "instructions": ", ".join(fast),
        "memory": f"{int(field(memory, 'MemTotal').split()[0]) / 2**20:.0f} GB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def field(text: str, name: str) -> str:
    """Return the first value of a field of a file of ``/proc``."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
