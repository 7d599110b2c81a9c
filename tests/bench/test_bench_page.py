"""Tables, targets and the page made of results."""

from __future__ import annotations

import json
import pathlib

import pytest
from helpers.records import floor, record

from bench import __main__ as command
from bench.environments import parse_pythons
from bench.jobs import JOBS, LOWBIT, RIVALS, choose
from bench.markdown import number, table, times
from bench.results import render
from bench.rounds import TOOLS
from bench.targets import target_rows


def _results() -> dict:
    score = {"model": "m", "images": 500, "gap_error": 0.3, "error": "", "metric": "top-1"}
    score |= {"kl": 0.25, "kl_error": 0.01}
    return {
        "machine": {"processor": "P", "cores": 2},
        "notes": ["AdaRound was left out."],
        "runs": [
            floor(peak_mb=90.0),
            floor(peak_mb=90.0) | {"beside": "native-xint8"},
            record(
                "xint8",
                "lowbit",
                wall=2.0,
                phases={"calibrate": 1.0},
                phases_cpu={"calibrate": 1.9},
            ),
            record("xint8", "quark", wall=31.0, versions={"amd-quark": "0.13"}),
            record("xint8", "onnxsim", error="ValueError: no"),
            record("native-xint8", "lowbit", wall=1.0, phases={"calibrate": 1.0}),
        ],
        "scores": [
            {**score, "job": "float", "tool": "lowbit", "score": 70.0, "gap": 0.0, "sqnr_db": None},
            {**score, "job": "xint8", "tool": "quark", "score": 60.2, "gap": -9.8, "sqnr_db": 11.0},
        ],
        "growth": [
            {"axis": "samples", "value": n, "job": "native-xint8", "tool": "lowbit", "error": ""}
            | {"wall": 1.0, "cpu": 1.0, "peak_mb": 100.0 + n, "load": 0.1}
            for n in (16, 512)
        ],
        "large": {
            "nodes": 20000,
            "presets": {"XINT8": {s: {"wall": 1.0, "cpu": 1.0} for s in ("plan", "solve", "emit")}},
        },
    }


def test_empty_columns_are_left_out() -> None:
    assert table(["a", "b", "c", "d"], [["1", "-", "-", "2"], ["3", "", "", "-"]]) == (
        "| a | b | d |\n| --- | --- | --- |\n| 1 | - | 2 |\n| 3 |  | - |\n"
    )


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (1.234, "1.23x"), (12.34, "12.3x"), (123.4, "123x")]
)
def test_ratios_have_three_digits(value: float | None, text: str) -> None:
    assert times(value) == text


def test_numbers_that_are_missing_are_dashes() -> None:
    assert (number(None), number(1.005, 1)) == ("-", "1.0")


def test_the_page_shows_ratios_scores_and_failures() -> None:
    page = render(_results())

    assert "| XINT8, MinMSE | 2.00 | 4.00x | 2.00x | 15.5x |" in page
    assert "| lowbit's own XINT8, reconstructed | 1.00 | 2.00x | 2.00x | 31.0x |" in page
    assert "60.2 (-9.8 ± 0.3), 0.2500, 11.0 dB" in page
    assert "onnxsim 0.8.1, xint8: `ValueError: no`" in page
    assert "1.00 (1.90)" in page
    assert "../docs/growth-samples.svg" in page
    assert "amd-quark 0.13" in page
    assert "- AdaRound was left out.\n" in page
    assert page.index("rival to lowbit") < page.index("Raw figures")


@pytest.mark.parametrize(("load", "shared"), [(1.9, False), (6.0, True)])
def test_a_machine_that_others_use_is_said_so(load: float, shared: bool) -> None:
    results = _results()
    results["runs"][1]["load"] = load

    assert ("others used the machine" in render(results)) is shared


def test_targets_are_judged() -> None:
    rows = {row[0]: row[1:] for row in target_rows(_results())}

    assert rows["m: calibration, XINT8, MinMSE, in float passes"] == ["<= 3x", "2.00x", "yes"]
    faster = "m: lowbit's own XINT8, reconstructed, faster than Quark's XINT8, MinMSE"
    assert rows[faster] == [">= 1x", "31.0x", "yes"]
    assert rows["memory flat in samples: 512 against 16"] == ["< 20 MB more", "+496 MB", "**no**"]
    assert any(title.startswith("20,000 nodes planned and emitted") for title in rows)


def test_new_records_replace_old_ones_of_their_kind_alone() -> None:
    old = [record("xint8", "lowbit", wall=9.0), record("bf16", "lowbit", wall=8.0)]
    new = [record("xint8", "lowbit", wall=1.0), record("xint8", "lowbit", 1, wall=2.0)]

    found = command.merged(old, new, ("model", "job", "tool"))

    assert [r["wall"] for r in found] == [8.0, 1.0, 2.0]


def test_what_is_stored_gives_the_page_that_is_stored() -> None:
    """Nobody edits figures by hand."""
    assert render(json.loads(command.JSON.read_text())) == command.PAGE.read_text()


def test_every_job_has_a_script_for_every_tool_it_names() -> None:
    for job in JOBS.values():
        assert LOWBIT in job.settings
        assert set(job.settings) <= {LOWBIT, *RIVALS}
        assert all((TOOLS / f"{tool}_job.py").is_file() for tool in job.settings)
        assert not job.like or job.like in JOBS


def test_jobs_are_chosen_by_name() -> None:
    assert [job.name for job in choose("bf16,xint8")] == ["bf16", "xint8"]
    assert len(choose(None)) == len(JOBS)
    with pytest.raises(SystemExit, match="unknown job 'xint9'"):
        choose("xint9")


def test_pythons_are_given_by_name(tmp_path: pathlib.Path) -> None:
    python = tmp_path / "python"
    python.touch()

    assert parse_pythons([f"quark={python}"]) == {"quark": str(python)}
    for wrong in (f"quack={python}", "quark", "quark=/no/such/python"):
        with pytest.raises(SystemExit, match="--python"):
            parse_pythons([wrong])
