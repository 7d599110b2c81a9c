"""Kill a process right before its n-th change to a folder, for every n until it gets through.

Run as a program: ``python killing.py FOLDER CHECK WORDS...`` runs ``lowbit WORDS`` once for each n, in
a copy of FOLDER, and then the program CHECK, which gets the copy as ``folder``, FOLDER as ``before``, and
as ``after`` a copy where the command got through.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import sys
from pathlib import Path

# With the argument that is the open folder a path is relative to, if there is one.
_EVENTS = {"os.mkdir": 2, "os.rmdir": 1, "os.remove": 1, "os.rename": 2, "os.truncate": None}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def kill_at(count: int, folder: Path) -> None:
    """Kill the process at its ``count``-th change in ``folder``."""
    seen = 0

    def audit(event: str, arguments: tuple) -> None:
        nonlocal seen
        changes = event in _EVENTS or (event == "open" and bool((arguments[2] or 0) & _WRITES))
        if not changes or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        if _place(event, arguments).is_relative_to(folder):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def _place(event: str, arguments: tuple) -> Path:
    """Return the path of a change; whole folders are removed by names relative to open ones."""
    path, opened = Path(os.fsdecode(arguments[0])), _EVENTS.get(event)
    if opened is None or arguments[opened] < 0:
        return path.absolute()
    try:
        return Path(f"/proc/self/fd/{arguments[opened]}").readlink() / path
    except OSError:  # not Linux: a change more than there is
        return path.absolute()


def run_forked(words: list[str], folder: Path, count: int | None) -> int:
    """Run a command in a child process, killed at a change if ``count`` is given; return its status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        from lowbit.cli import main

        os.chdir(folder)
        if count is not None:
            kill_at(count, folder)
        code = main(words)
    finally:
        os._exit(code)
    return code


def _import_everything() -> None:
    """Import what commands import when they need it, once, before any child."""
    import lowbit

    for module in pkgutil.walk_packages(lowbit.__path__, "lowbit."):
        if not module.name.startswith(("lowbit.quark", "lowbit.__main__")):
            importlib.import_module(module.name)
    importlib.import_module("onnxruntime")


def main() -> None:
    """Try every moment; print how many there are."""
    source, check, *words = sys.argv[1:]
    _import_everything()
    before, after = Path(source), Path(f"{source}-whole").absolute()
    shutil.copytree(before, after)
    if status := run_forked(words, after, None):
        sys.exit(f"ended with {status}")

    count = 0
    while True:
        count += 1
        folder = Path(f"{source}-killed-{count}").absolute()
        shutil.copytree(source, folder)
        status = run_forked(words, folder, count)
        if status not in (0, -signal.SIGKILL):
            sys.exit(f"moment {count}: ended with {status}")
        namespace: dict = {"folder": folder, "run": lambda w, f=folder: run_forked(w, f, None)}
        namespace |= {"moment": count, "words": words, "before": before, "after": after}
        exec(Path(check).read_text(), namespace)  # noqa: S102  # the test's own file
        shutil.rmtree(folder)
        if status == 0:
            break
    print(count)  # noqa: T201


if __name__ == "__main__":
    main()
