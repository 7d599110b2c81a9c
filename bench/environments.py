"""A Python for each rival, with what is pinned in ``bench/rivals``; nothing of it enters lowbit's."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping

from bench.jobs import LOWBIT, RIVALS

PINS = pathlib.Path(__file__).resolve().parent / "rivals"


def parse_pythons(values: Iterable[str]) -> dict[str, str]:
    """Return the Pythons given as ``RIVAL=PATH``."""
    found = {}
    for value in values:
        tool, separator, path = value.partition("=")
        if not separator or tool not in RIVALS:
            raise SystemExit(f"--python {value}: give RIVAL=PATH, of {', '.join(RIVALS)}")
        if not pathlib.Path(path).is_file():
            raise SystemExit(f"--python {value}: there is no such file")
        found[tool] = str(pathlib.Path(path).absolute())
    return found


def pythons(rivals: Iterable[str], given: Mapping[str, str], work: pathlib.Path) -> dict[str, str]:
    """Return a Python for lowbit and for each rival, making environments that are missing."""
    found = {LOWBIT: sys.executable}
    for rival in rivals:
        found[rival] = given.get(rival) or _made(rival, work / "environments" / rival)
    return found


def _made(rival: str, folder: pathlib.Path) -> str:
    python, pins = folder / "bin" / "python", PINS / f"{rival}.txt"
    done = folder / "pins.txt"
    if done.is_file() and done.read_text() == pins.read_text():
        return str(python)
    print(f"making an environment for {rival}: {' '.join(pins.read_text().split())}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(pins)], check=True)
    done.write_text(pins.read_text())
    return str(python)
