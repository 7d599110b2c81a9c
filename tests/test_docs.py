"""What the documentation prints runs: every piece of Python, every command's options."""

from __future__ import annotations

import pathlib
import re
import shlex

import pytest

from lowbit.cli.options import make_parser
from lowbit.errors import ConfigError

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def _snippets() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for match in re.finditer(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            line = page.read_text("utf-8")[: match.start()].count("\n") + 1
            found.append((f"{page.name}:{line}", match[1]))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("snippet", [pytest.param(code, id=name) for name, code in _snippets()])
def test_every_snippet_runs(snippet, model_path, monkeypatch) -> None:
    monkeypatch.chdir(model_path.parent)

    exec(compile(snippet, "snippet", "exec"), {"__name__": "snippet"})  # noqa: S102


def _commands() -> list[tuple[str, list[str]]]:
    """Return the commands as printed: indented, with a prompt or without, perhaps over two lines."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        lines = re.findall(r"^ {4}(?:\$ )?(lowbit [a-z].*)$", text, re.MULTILINE)
        # Lines with words in capitals or brackets show what a command looks like, in columns.
        plain = [line for line in lines if not re.search(r"\[|  |\b[A-Z]{4,}\b", line)]
        words = [line.split(" > ")[0] for line in plain]
        found += [(f"{page.name}: {line}", shlex.split(line, comments=True)[1:]) for line in words]
    return found


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in _commands()])
def test_every_command_is_one_that_the_parser_takes(words) -> None:
    try:
        make_parser().parse(words)
    except ConfigError as error:
        pytest.fail(str(error))
