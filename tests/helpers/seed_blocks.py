"""Code blocks of documents (reStructuredText and Markdown), to be run where they lie."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from pathlib import Path

_DIRECTIVE = re.compile(r"^\.\. code(-block)?::")
_FENCE = re.compile(r"^```(\w*)$")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """The text of a block and the line it is announced on."""

    line: int
    text: str


def code_blocks(path: Path) -> list[Block]:
    """Return all code blocks of a document, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    blocks = []
    index = 0
    while index < len(lines):
        if _DIRECTIVE.match(lines[index]):
            end = _end_of_indented(lines, index + 1)
            blocks.append(Block(index + 1, _indented(lines[index + 1 : end])))
            index = end
        elif _FENCE.match(lines[index]):
            end = next(i for i in range(index + 1, len(lines)) if lines[i] == "```")
            blocks.append(Block(index + 1, "\n".join(lines[index + 1 : end]) + "\n"))
            index = end + 1
        else:
            index += 1
    return blocks


def _end_of_indented(lines: list[str], start: int) -> int:
    for index in range(start, len(lines)):
        if lines[index].strip() and not lines[index].startswith(" "):
            return index
    return len(lines)


def _indented(lines: list[str]) -> str:
    """Return a block without its margin; a page may indent the first paragraph otherwise."""
    whole = textwrap.dedent("\n".join(lines)).strip("\n") + "\n"
    try:
        compile(whole, "block", "exec")
    except IndentationError:
        first = next(i for i, line in enumerate(lines) if line.strip())
        gap = next(i for i in range(first, len(lines)) if not lines[i].strip())
        parts = (lines[:gap], lines[gap:])
        return "\n".join(textwrap.dedent("\n".join(part)).strip("\n") for part in parts) + "\n"
    except SyntaxError:
        pass  # a command, or not Python at all
    return whole
