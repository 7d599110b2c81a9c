"""What the documentation prints runs: every piece of Python, every command's options."""

from __future__ import annotations

import pathlib
import re
import shlex

import msgspec
import onnx
import pytest
from helpers.token_models import text_model, write_texts

from lowbit.cli.options import make_parser
from lowbit.config.presets import PRESETS
from lowbit.errors import ConfigError
from lowbit.targets import Target
from lowbit.transforms.rewrites import REWRITES

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
    if "Tokenization" in snippet:
        write_texts(model_path.parent)
        for name in ("model.onnx", "encoder.onnx"):
            onnx.save(text_model(), model_path.parent / name)

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


# Words that stand for a name, and the files of examples that were followed on a branch.
_MADE_UP = {
    *(f"{package}/NAME.py" for package in ("emit", "refine", "search")),
    *("emit/logarithms.py", "refine/diffusion.py", "search/halving.py"),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page) -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text("utf-8"))) - _MADE_UP

    places = (ROOT, ROOT / "src" / "lowbit")
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_preset_that_is_named_exists(page) -> None:
    family = r"(?:X|V)INT8|[AUS]\d+[SW]8|BF16|FP16|BFP16|MX\w+|W[48]|DYNAMIC8"
    named = set(re.findall(rf"--preset ((?:{family})\w*)", page.read_text("utf-8")))

    assert named <= set(PRESETS)


def _rows(page: str, heading: str) -> str:
    """Return a page up to a heading."""
    return (ROOT / "docs" / page).read_text("utf-8").partition(heading)[0]


def test_the_page_of_targets_tells_every_field_and_every_rewrite() -> None:
    text = _rows("targets.md", "## Runtimes")
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)

    told = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}

    assert told == {field.name for field in msgspec.structs.fields(Target)}
    assert [name for name in REWRITES if f"`{name}`" not in text] == []


def test_every_package_has_a_line_in_the_design() -> None:
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    modules = {
        p.stem for p in (ROOT / "src" / "lowbit").iterdir() if not p.name.startswith(("_", "py."))
    }

    assert {
        name for name in modules if not re.search(rf"^\| .*`{name}`.* \|", text, re.MULTILINE)
    } == set()
