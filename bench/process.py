"""A fresh process: its seconds, its processor seconds, and the peak memory of its whole tree."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence

_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)+")
_PERIOD = 0.01


@dataclasses.dataclass(frozen=True)
class Run:
    """The time and memory of one process; ``error`` is the end of its output if it failed."""

    wall: float
    cpu: float
    peak_mb: float
    error: str = ""


def measure(command: Sequence[str], folder: pathlib.Path, timeout: float = 3600.0) -> Run:
    """Run a command in a folder and measure it.

    Peak memory is what Linux counts: the high-water mark of the process itself, or the largest sum
    over it and its descendants seen at any time, whichever is more.
    """
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, stdout=said, stderr=said, env=_environment()
        )
        peak, status, usage = 0.0, None, None
        while status is None:
            peak = max(peak, tree_mb(process.pid), high_water_mb(process.pid))
            pid, code, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                status, usage = code, used
            elif time.perf_counter() - start > timeout:
                process.kill()
                timeout = float("inf")
            else:
                time.sleep(_PERIOD)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        tail = said.read()[-2000:].decode(errors="replace")
    error = tail.strip().splitlines() or [f"exit code {process.returncode}"]
    cpu = usage.ru_utime + usage.ru_stime
    return Run(wall, cpu, peak, without_folders(error[-1]) if process.returncode else "")


def without_folders(text: str) -> str:
    """Return a message in which paths of this machine are names of files; names of nodes look like paths, too."""
    return _FOLDERS.sub(lambda found: "" if pathlib.Path(found[0]).is_dir() else found[0], text)


def _environment() -> dict[str, str]:
    """Return the environment, in which Python may keep what it compiled: all tools are installed."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def tree_mb(pid: int) -> float:
    """Return the memory of a process with all that descend from it; nothing if it has no children.

    What several of them share, such as all of a fork's memory, counts once (``Pss``).
    """
    members = descendants(pid)
    return sum(map(_share_mb, members)) if len(members) > 1 else 0.0


def descendants(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    try:
        tasks = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
        children = [c for task in tasks for c in (task / "children").read_text().split()]
    except OSError:
        return [pid]  # it has ended
    return [pid, *(below for child in children for below in descendants(int(child)))]


def _share_mb(pid: int) -> float:
    try:
        return parse_kilobytes(pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss:")
    except OSError:
        return 0.0


def high_water_mb(pid: int) -> float:
    """Return the largest resident size a process ever had."""
    try:
        return parse_kilobytes(pathlib.Path(f"/proc/{pid}/status").read_text(), "VmHWM:")
    except OSError:
        return 0.0


def parse_kilobytes(text: str, field: str) -> float:
    """Return a field of a file of ``/proc`` in MB; 0 where it is missing, as in ended processes."""
    for line in text.splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0
