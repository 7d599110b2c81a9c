"""Streams that are closed or full, signals, and names that terminals must not obey."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth

from lowbit.cli import main
from lowbit.cli.process import TerminatedError, own_process
from lowbit.errors import visible


def _start(*words: object, **options) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"}
    return subprocess.Popen(
        [sys.executable, "-m", "lowbit", *map(str, words)], env=environment, **options
    )


def _shell(line: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m lowbit {line}"],
        capture_output=True,
        check=False,
        env=environment,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_one_line_and_an_error() -> None:
    ran = _shell("presets > /dev/full")

    assert ran.returncode == 2
    assert ran.stderr == b"lowbit: error: cannot write to stdout: No space left on device\n"


def test_a_closed_stdout_is_one_line_and_an_error() -> None:
    ran = _shell("presets >&-")

    assert ran.returncode == 2
    assert ran.stderr == b"lowbit: error: cannot write to stdout: Bad file descriptor\n"


def test_a_closed_stderr_changes_nothing_but_what_is_seen() -> None:
    assert _shell("plan no.onnx 2>&-").returncode == 2
    ran = _shell("presets 2>&-")
    assert ran.returncode == 0
    assert b"A8W8" in ran.stdout


def test_a_closed_stdout_that_is_not_needed_is_no_error(model, data) -> None:
    ran = _shell(f"quantize {model} a.onnx --data {data} --no-reconstruction --quiet <&- >&-")

    assert (ran.returncode, ran.stderr) == (0, b"")
    onnx.checker.check_model("a.onnx")


def _left(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if "lowbit" in path.name)


@pytest.fixture
def interruptible():
    """Programs that are started inherit that SIGINT ends them, also where a shell in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_and_leaves_nothing_temporary(folder, number, code) -> None:
    onnx.save(chain(4), "chain.onnx")
    np.savez("x.npz", x=np.concatenate([feed["x"] for feed in smooth(4)]))
    Path("c.json").write_text('{"refinement": {"type": "adaround", "num_iterations": 100000}}')
    Path("int8.onnx").write_bytes(b"from before")
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = ["quantize", "chain.onnx", "int8.onnx", "--data", "x.npz", "--config", "c.json"]

    with subprocess.Popen(
        [sys.executable, "-m", "lowbit", *words, "--preset", "XINT8"],
        env=environment,
        stderr=subprocess.PIPE,
    ) as process:
        # The folder of the checkpoint is made when refinement begins.
        while not Path("int8.onnx.refining").exists():
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.02)
        process.send_signal(number)
        said = process.stderr.read()

    assert process.returncode == code, said
    assert said.count(b"\n") == 1
    assert b"nothing was written but finished layers, in int8.onnx.refining: --resume" in said
    assert Path("int8.onnx").read_bytes() == b"from before"
    assert _left(temporary) == _left(folder) == []


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "kind"),
    [(signal.SIGTERM, TerminatedError), (signal.SIGINT, KeyboardInterrupt)],
)
def test_a_signal_while_an_object_is_removed_ends_the_command_too(number, kind) -> None:
    class Signalled:
        def __del__(self):
            signal.raise_signal(number)

    def signalled_while_removed():
        Signalled()
        for _ in range(10_000):
            threading.Event().wait(0.01)

    with pytest.raises(kind), own_process():
        signalled_while_removed()


def test_names_are_shown_and_not_obeyed(capsys) -> None:
    assert main(["plan", "a\x1b[31m\n\rb\u202e.onnx"]) == 2

    said = capsys.readouterr().err
    assert said == "lowbit: error: no such model: a\\x1b[31m\\n\\rb\\u202e.onnx\n"


def test_tensors_are_shown_and_not_obeyed(model, capsys) -> None:
    message = onnx.load(model)
    for node in message.graph.node:
        for names in (node.input, node.output):
            names[:] = ["c\x1b[2J" if name == "c1" else name for name in names]
    message.graph.node[0].name = "conv\x1b]0;title\x07"
    onnx.save(message, model)

    assert main(["plan", str(model), "--all"]) == 0

    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\\x1b" in out


def test_what_has_a_shape_is_left_as_it_is() -> None:
    assert visible("/features/0/Conv größer 中.onnx") == "/features/0/Conv größer 中.onnx"
    assert visible("a\tb\udcff") == "a\\tb\\udcff"


@pytest.mark.parametrize("report", ["r\udcff.json", "r\udcff.html"])
def test_names_that_are_no_text_are_read_and_reported(run, model, data, report) -> None:
    odd = data.rename("d\udcff.npz")
    float_model = model.rename("m\udcff.onnx")
    words = ("--data", odd, "--no-reconstruction", "--report", report, "--keep-all-steps")

    ran = run("quantize", float_model, "o\udcff.onnx", *words)

    assert ran.code == 0, ran.err
    assert r"d\udcff.npz" in Path(report).read_text("utf-8").replace("\\\\", "\\")
    onnx.checker.check_model(onnx.load("o\udcff.onnx"))


def test_the_longest_name_works_and_a_longer_one_is_one_line(run, model, data) -> None:
    name = "n" * 250
    assert run("quantize", model, name, "--data", data, "--quiet").code == 0
    assert sorted(p.name for p in Path().iterdir()) == ["data.npz", "model.onnx", name]
    for words in (("plan", "n" * 300), ("quantize", model, "a", "--data", "n" * 300)):
        ran = run(*words)
        assert ran.code == 2
        assert ran.err.endswith("File name too long\n")
        assert ran.err.count("\n") == 1


def test_what_the_system_cannot_do_is_one_line(run, model, data, monkeypatch) -> None:
    def fail(*_, **__):
        raise OSError(28, "No space left on device", "place")

    monkeypatch.setattr("lowbit.cli.quantize.run", fail)

    ran = run("quantize", model, "a.onnx", "--data", data)

    assert (ran.code, ran.err) == (2, "lowbit: error: place: No space left on device\n")
