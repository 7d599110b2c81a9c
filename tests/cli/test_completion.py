"""Completion scripts: what a shell offers is what the parser takes."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from lowbit.cli.completion import SHELLS, completion
from lowbit.cli.options import make_parser
from lowbit.config.presets import PRESETS

BASH = shutil.which("bash") or ""
VALUES = {"--preset": tuple(PRESETS)}


def offered(words: list[str]) -> list[str]:
    """Return what bash offers for the last word of a line."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"""{completion("bash", make_parser(), VALUES)}
COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _lowbit
printf '%s\\n' "${{COMPREPLY[@]}}" """
    ran = subprocess.run([BASH, "-c", script], check=True, capture_output=True, text=True)
    return ran.stdout.split()


@pytest.mark.skipif(not BASH, reason="bash is not installed here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["lowbit", "qu"], ["quantize"]),
        (["lowbit", "quantize", "--no-sm"], ["--no-smooth-quant"]),
        (["lowbit", "plan", "m.onnx", "--preset", "XINT8_"], ["XINT8_ACCURATE"]),
        (["lowbit", "quantize", "m.onnx", "--head", ""], ["auto", "float", "int8"]),
        (["lowbit", "presets", "--no-sm"], []),
    ],
)
def test_bash_offers_commands_options_and_values(words, found) -> None:
    assert offered(words) == found


@pytest.mark.skipif(not BASH, reason="bash is not installed here")
def test_bash_offers_files_for_arguments(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").touch()

    assert offered(["lowbit", "quantize", "mod"]) == ["model.onnx"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed here")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("lowbit qu", ["quantize"]),
        ("lowbit quantize --no-sm", ["--no-smooth-quant"]),
        ("lowbit plan m.onnx --preset XINT8_", ["XINT8_ACCURATE"]),
        ("lowbit presets --no-sm", []),
    ],
)
def test_fish_offers_commands_options_and_values(line, found) -> None:
    script = f"{completion('fish', make_parser(), VALUES)}\ncomplete -C '{line}'"
    ran = subprocess.run(
        [shutil.which("fish") or "", "--no-config", "-c", script],
        check=True,
        capture_output=True,
        text=True,
    )
    assert [offer.split("\t")[0] for offer in ran.stdout.splitlines()] == found


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_every_command_is_there(shell) -> None:
    parser = make_parser()

    script = completion(shell, parser, VALUES)

    for name, command in parser.commands.items():
        assert name in script
        for action in command.actions():
            for option in action.option_strings:
                if option.startswith("--"):
                    assert (option[2:] if shell == "fish" else option) in script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_can_read_the_script(shell) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here")
    script = completion(shell, make_parser(), VALUES)

    ran = subprocess.run([program, "-n"], input=script, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
