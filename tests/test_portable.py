"""Nothing that only POSIX systems have is used unguarded, and text is UTF-8 on every system."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "lowbit"

POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
POSIX_NAMES = {
    ("os", name)
    for name in "fork getuid geteuid getppid sched_getaffinity sysconf statvfs nice kill chown mkfifo".split()
} | {("signal", name) for name in "SIGKILL SIGALRM SIGUSR1 SIGUSR2 SIGHUP alarm setitimer".split()}


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text("utf-8"))


def _is_guard(node: ast.AST) -> bool:
    """Whether a missing name can be met in a body: by a handler, or because Windows never gets there."""
    if isinstance(node, ast.Try):
        return bool(node.handlers)
    return isinstance(node, ast.If) and ast.unparse(node.test) == "sys.platform != 'win32'"


def _guarded(tree: ast.Module) -> set[ast.AST]:
    bodies = [node.body for node in ast.walk(tree) if _is_guard(node)]
    return {inner for body in bodies for part in body for inner in ast.walk(part)}


def unguarded(tree: ast.Module) -> list[str]:
    """Return the names of a module that other systems do not have."""
    guarded, found = _guarded(tree), []
    for node in ast.walk(tree):
        if node in guarded:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in POSIX_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in POSIX_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = (node.value.id, node.attr)
            found += [".".join(name)] if name in POSIX_NAMES else []
    return found


def without_encoding(tree: ast.Module) -> list[str]:
    """Return calls that read or write text in whatever encoding a system prefers."""
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        named = any(keyword.arg == "encoding" for keyword in node.keywords)
        places = {"read_text": 0, "write_text": 1}
        if node.func.attr in places and not named and len(node.args) <= places[node.func.attr]:
            found.append(f"{node.func.attr} in line {node.lineno}")
    return found


def test_nothing_of_posix_alone_is_used_unguarded() -> None:
    assert {name: found for name, tree in _trees() if (found := unguarded(tree))} == {}


def test_text_has_an_encoding() -> None:
    assert {name: found for name, tree in _trees() if (found := without_encoding(tree))} == {}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import resource", ["resource"]),
        ("try:\n    import resource\nexcept ImportError:\n    pass", []),
        ("from fcntl import flock", ["fcntl"]),
        ("if sys.platform != 'win32':\n    import fcntl", []),
        ("if sys.platform == 'win32':\n    import fcntl", ["fcntl"]),
        ("import os\nos.fork()", ["os.fork"]),
        ("import os\nos.replace(a, b)", []),
    ],
)
def test_the_check_itself_finds_what_it_looks_for(code, found) -> None:
    assert unguarded(ast.parse(code)) == found
