"""Measuring a process and its descendants."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from bench.machine import field
from bench.process import descendants, measure, parse_kilobytes, without_folders
from bench.regress import steps_back

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc"
)


def _python(code: str, folder: pathlib.Path):
    return measure([sys.executable, "-c", code], folder)


def test_peak_memory_is_the_process_s_own_high_water_mark(tmp_path: pathlib.Path) -> None:
    """Though it is given back before the end."""
    small = _python("pass", tmp_path)
    large = _python("x = b'1' * (200 << 20); del x", tmp_path)

    assert 195 < large.peak_mb - small.peak_mb < 215


def test_children_count_towards_memory_and_cpu_time(tmp_path: pathlib.Path) -> None:
    child = "x = b'1' * (100 << 20); [i * i for i in range(10**6)]; input()"
    parent = f"""
import subprocess, sys
children = [subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE) for _ in '12']
for process in children:
    while int(open(f'/proc/{{process.pid}}/statm').read().split()[1]) * 4096 < 100 << 20: pass
[i for i in range(5 * 10**6)]
for process in children: process.communicate(b'\\n')
"""
    run = _python(parent, tmp_path)

    assert run.error == ""
    assert run.peak_mb > 200
    assert run.cpu > 0


def test_a_failure_is_the_last_thing_that_was_said(tmp_path: pathlib.Path) -> None:
    assert (
        _python("raise ValueError('no such thing')", tmp_path).error == "ValueError: no such thing"
    )
    assert _python("import sys; sys.exit(3)", tmp_path).error == "exit code 3"


def test_fields_of_proc_are_found_or_nothing() -> None:
    assert parse_kilobytes("Name:\tx\nVmHWM:\t  2048 kB\n", "VmHWM:") == 2.0
    assert parse_kilobytes("Name:\tx\n", "VmHWM:") == 0.0
    assert field("model name\t: A: B\n", "model name") == "A: B"
    assert field("", "model name") == ""


def test_a_process_descends_from_itself() -> None:
    assert descendants(os.getpid())[0] == os.getpid()


def test_only_steps_back_beyond_what_is_allowed_are_named() -> None:
    stored = {"a": 10.0, "b": 10.0}

    assert steps_back({"a": 12.9, "b": 13.1, "new": 99.0}, stored) == ["b"]


def test_an_error_names_files_without_the_folders_of_this_machine(tmp_path) -> None:
    said = f"Load model from {tmp_path}/model.onnx failed: node (/model.9/m_2/MaxPool_output_0)"

    found = without_folders(said)

    assert found == "Load model from model.onnx failed: node (/model.9/m_2/MaxPool_output_0)"
