"""What holds for every command: help, version, exit codes, pipes and terminals."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

import lowbit
from lowbit.cli import main
from lowbit.cli.options import make_parser

HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "PIL", "lowbit.api")


def command(*words: object, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-m", "lowbit", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        **options,
    )


def test_help_and_parser_stay_light() -> None:
    script = (
        "import sys; from lowbit.cli import main\n"
        "try: main(['quantize', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )

    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert ran.returncode == 0, ran.stderr
    assert "--preset" in ran.stdout


@pytest.mark.parametrize("name", sorted(make_parser().commands))
def test_every_command_has_help(name, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])

    assert end.value.code == 0
    assert f"usage: lowbit {name}" in capsys.readouterr().out


def test_the_help_says_which_stages_can_be_skipped(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    with pytest.raises(SystemExit):
        main(["quantize", "--help"])

    text = capsys.readouterr().out
    assert "skip cross-layer equalization" in text
    assert "instead of reconstructing each layer's output" in text


def test_version(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])

    assert end.value.code == 0
    assert capsys.readouterr().out == f"lowbit {lowbit.__version__}\n"


def test_no_command_shows_help_and_fails(run) -> None:
    ran = run()

    assert (ran.code, ran.out) == (2, "")
    assert "quantize" in ran.err


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("quantise", "a", "b"), "did you mean 'quantize'?"),
        (("--verison",), "did you mean '--version'?"),
        (("evaluat", "a", "b"), "unknown command 'evaluat'; did you mean 'evaluate'?"),
        (("quantize", "a", "b", "--dta", "c"), "did you mean '--data'?"),
        (("quantize", "a", "b", "--lim=3"), "unknown option '--lim'; did you mean '--limit'?"),
        (("plan",), "MODEL"),
        (("plan", "a", "b"), "unrecognized arguments: b"),
        (("quantize", "a", "b", "--data"), "--data: expected one argument"),
    ],
)
def test_mistyped_words_name_the_nearest(run, words, near) -> None:
    ran = run(*words)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("lowbit: error: ")
    assert near in ran.err


def test_an_interrupt_says_that_nothing_was_written(run, model, data, monkeypatch) -> None:
    quantizing = importlib.import_module("lowbit.cli.quantize")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(quantizing, "run", interrupt)

    ran = run("quantize", model, "int8.onnx", "--data", data)

    assert (ran.code, ran.out) == (130, "")
    assert ran.err == "lowbit: interrupted; nothing was written\n"


def test_a_bug_keeps_its_traceback(run, model, data, monkeypatch) -> None:
    quantizing = importlib.import_module("lowbit.cli.quantize")

    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(quantizing, "run", fail)

    with pytest.raises(ZeroDivisionError):
        run("quantize", model, "int8.onnx", "--data", data)


def test_the_command_runs_and_is_quiet_when_piped(model, data, folder) -> None:
    ran = command("quantize", model, "int8.onnx", "--data", data, cwd=folder)

    assert ran.returncode == 0
    assert ran.stderr == ""
    assert "logits" in ran.stdout
    assert "\x1b" not in ran.stdout
    assert (folder / "int8.onnx").exists()


def test_a_failing_command_has_no_traceback(folder) -> None:
    ran = command("quantize", "no.onnx", "int8.onnx", "--data", "random", cwd=folder)

    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == "lowbit: error: no such model: no.onnx\n"


def test_a_limited_character_set_does_not_stop_the_output(folder, model, data) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}

    ran = subprocess.run(
        [sys.executable, "-m", "lowbit", "quantize", model, "int8.onnx", "--data", data],
        capture_output=True,
        check=False,
        env=environment,
        cwd=folder,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_a_closed_pipe_is_no_error_message() -> None:
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    ran = subprocess.run(
        [sys.executable, "-m", "lowbit", "presets", "--json"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
        env=environment,
    )
    os.close(write)

    assert ran.stderr == b""
    assert ran.returncode == 1


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("option", "shown"), [((), True), (("--quiet",), False)])
def test_a_terminal_sees_progress_on_stderr(folder, model, data, option, shown) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}

    with subprocess.Popen(
        [sys.executable, "-m", "lowbit", "quantize", model, "a.onnx", "--data", data, *option],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        cwd=folder,
    ) as process:
        os.close(theirs)
        seen = read_all(ours)
        out = process.stdout.read()

    assert process.returncode == 0
    assert (b"verify" in seen) == shown
    assert b"\x1b" not in out


def read_all(descriptor: int) -> bytes:
    seen = b""
    while True:
        try:
            part = os.read(descriptor, 1 << 16)
        except OSError:  # the other side is closed
            part = b""
        if not part:
            os.close(descriptor)
            return seen
        seen += part
