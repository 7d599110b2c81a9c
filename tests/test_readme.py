"""Every command and the code in the README run as printed."""

import pathlib
import re
import shlex
import shutil

import pytest

from lowbit.cli import main

README = pathlib.Path(__file__).parent.parent / "README.md"


def _commands() -> list[list[str]]:
    lines = re.findall(r"^    (lowbit .*)$", README.read_text(), re.MULTILINE)
    return [shlex.split(line.split("#")[0])[1:] for line in lines]


def test_the_commands_run(
    model_path: pathlib.Path, images: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model_path.parent)
    shutil.copytree(images, "val")
    commands = _commands()

    codes = [main(command) for command in commands]

    assert len(commands) >= 4
    assert codes == [0] * len(commands)
    assert pathlib.Path("quantized.onnx").exists()


@pytest.mark.usefixtures("images")
def test_the_python_runs(model_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_path.parent)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

    exec(compile(code, "README.md", "exec"), {})  # noqa: S102

    assert pathlib.Path("quantized.onnx").exists()
