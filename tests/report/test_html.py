"""The page holds all of a report and asks for nothing; what the script reads is there."""

from __future__ import annotations

import importlib.resources
import json
import re
import shlex
import sys

import msgspec
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.api.compare import compare
from lowbit.errors import OutputError
from lowbit.evaluate.accuracy import Accuracy
from lowbit.evaluate.latency import Latency, Unfused
from lowbit.planning.plan import FloatNode
from lowbit.report import html
from lowbit.report.html import render_report, write_report
from lowbit.report.values import (
    Budget,
    BudgetRow,
    Cause,
    GoalOutcome,
    GoalTrial,
    Promotion,
    Report,
    Score,
    Step,
    SuggestedFix,
    TensorView,
)
from lowbit.scales.parameters import Adjustment


@pytest.fixture(scope="module")
def report() -> Report:
    feeds = small_feeds(6)
    return compare(small_cnn(), lowbit.quantize(small_cnn(), data=feeds).quantized, feeds)


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_everything_and_asks_for_nothing(report) -> None:
    page = render_report(report, title="small", command="lowbit compare a b")

    data = data_of(page)
    assert data["command"] == "lowbit compare a b"
    assert {row["tensor"] for row in data["reports"][0]["report"]["tensors"]} >= {
        "input",
        "r1",
        "w1",
    }
    assert data["versions"]["numpy"]
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "@import" not in page
    assert page.count("Permission is hereby granted") == 2  # the libraries' licences
    assert len(page) < 2_000_000
    assert not re.search(r"@[A-Z]+@", page)


def test_several_reports_are_in_one_page_and_the_libraries_once(report) -> None:
    page = render_report(report, title="a", others={"b": report, "c": report})

    assert [one["title"] for one in data_of(page)["reports"]] == ["a", "b", "c"]
    assert page.count("var dagre=") == 1


def test_the_layout_library_is_there_only_where_it_is_used(report) -> None:
    page = render_report(msgspec.structs.replace(report, network=None), title="a")

    assert "var dagre=" not in page


def test_names_cannot_become_markup(report) -> None:
    name = "</script><script>alert(1)</script>@STYLE@<!--"
    score = Score(tensor=name, sqnr_db=1.0, cosine=1.0, max_error=0.0)
    hostile = msgspec.structs.replace(report, layers=(score,))

    page = render_report(hostile, title=name)

    assert "<script>alert" not in page
    assert data_of(page)["reports"][0]["report"]["layers"][0]["tensor"] == name


def test_a_page_is_written_whole_or_not_at_all(report, tmp_path) -> None:
    write_report(report, tmp_path / "a.html")

    assert (tmp_path / "a.html").stat().st_size > 50_000
    with pytest.raises(OutputError):
        write_report(report, tmp_path / "no" / "a.html")
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]


def test_the_running_command_is_told_unless_another_is(report, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lowbit", "compare", "my model.onnx", "q.onnx"])

    words = shlex.split(data_of(render_report(report, title="t"))["command"])

    assert words == ["lowbit", "compare", "my model.onnx", "q.onnx"]


def test_the_title_is_escaped_where_it_is_markup(report) -> None:
    page = render_report(report, title="<b>&amp;</b>")

    assert "<title>&lt;b&gt;&amp;amp;&lt;/b&gt;</title>" in page
    assert data_of(page)["reports"][0]["title"] == "<b>&amp;</b>"


def test_the_policy_of_the_page_forbids_what_it_does_not_need(report) -> None:
    (policy,) = re.findall(
        r'Content-Security-Policy" content="([^"]*)"', render_report(report, title="")
    )

    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules.pop("default-src") == "'none'"
    assert set(rules) == {"script-src", "style-src", "img-src"}
    assert "http" not in policy


def test_an_error_while_writing_leaves_the_page_that_was_there(
    report, tmp_path, monkeypatch
) -> None:
    path = tmp_path / "a.html"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html.os, "replace", fail)

    with pytest.raises(OutputError, match=r"cannot write .*a\.html: No space left on device"):
        write_report(report, path)

    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]


def test_peak_memory_is_in_bytes() -> None:
    # Python with NumPy and onnxruntime is larger than ten megabytes and smaller than a terabyte.
    assert 10**7 < html._peak_memory() < 10**12


# The script names fields of the report by hand: each of them must exist.


SCRIPT = (
    importlib.resources.files("lowbit.report").joinpath("assets", "report.js").read_text("utf-8")
)

READ = {
    r"report\.(\w+)": Report,
    r"report\.budget\.(\w+)": Budget,
    r"\bbudget\.(\w+)": Budget,
    r"\bshare\.(\w+)": BudgetRow,
    r"\bpromotion\.(\w+)": Promotion,
    r"\bfix\.(\w+)": SuggestedFix,
    r"\bview\.(\w+)": TensorView,
    r"\blayer\.(\w+)": Score,
    r"\bworst\.(\w+)": Score,
    r"report\.latency\.(\w+)": Latency,
    r"report\.goal\.(\w+)": GoalOutcome,
}
ROWS = {
    r"of report\.accuracy\) (.*?);\n": ("row", Accuracy),
    r"budget\.rows\.slice\(0, 12\)(.*?)\n    \}\);": ("row", BudgetRow),
    r"row\.causes\.map\((.*?)\)\)": ("c", Cause),
    r"report\.steps\.map\((.*?)\)\);": ("s", Step),
    r"report\.goal\.trials\.map\((.*?)\)\);": ("t", GoalTrial),
    r"report\.float_nodes\.map\((.*?)\)\);": ("n", FloatNode),
    r"report\.adjustments\.map\((.*?)\)\);": ("a", Adjustment),
    r"report\.latency\.unfused\.map\((.*?)\)\);": ("u", Unfused),
}


def fields(kind: type) -> set[str]:
    return set(kind.__annotations__)


@pytest.mark.parametrize("pattern", READ)
def test_the_script_reads_fields_that_the_report_has(pattern) -> None:
    read = set(re.findall(pattern, SCRIPT))

    assert read
    # Names of the language, not of the report.
    assert read - {"length"} <= fields(READ[pattern])


@pytest.mark.parametrize("pattern", ROWS)
def test_the_script_reads_fields_that_the_rows_have(pattern) -> None:
    name, kind = ROWS[pattern]
    parts = re.findall(pattern, SCRIPT, re.DOTALL)
    read = {word for part in parts for word in re.findall(rf"\b{name}\.(\w+)", part)}

    assert read
    assert read - {"length"} <= fields(kind)


def test_the_script_shows_every_field_of_the_budget() -> None:
    words = set(re.findall(r"\.(\w+)", SCRIPT))

    assert fields(BudgetRow) - {"kind", "op_type", "format"} <= words
    assert fields(Promotion) - {"gain_db"} <= words
    assert fields(Budget) - {"float_sqnr_db"} <= words


def test_every_element_that_the_script_asks_for_is_in_the_page(report) -> None:
    page = render_report(report, title="t")
    ids = set(re.findall(r'\bid="([\w-]+)"', page))

    asked = set(re.findall(r'\bby\("([\w-]+)"\)', SCRIPT))
    asked |= set(re.findall(r'\bplain\("([\w-]+)"', SCRIPT))
    asked |= set(re.findall(r'querySelector(?:All)?\("#([\w-]+)', SCRIPT))

    assert len(asked) > 10
    assert asked <= ids
    for name in re.findall(r'document\.querySelector\("\.([\w-]+)"', SCRIPT):
        assert re.search(rf'class="[^"]*\b{name}\b', page), name


def test_an_infinite_figure_is_null_in_the_page(report) -> None:
    exact = Score(tensor="y", sqnr_db=float("inf"), cosine=1.0, max_error=0.0)

    page = render_report(msgspec.structs.replace(report, outputs=(exact,)), title="t")

    assert data_of(page)["reports"][0]["report"]["outputs"][0]["sqnr_db"] is None
    assert not re.search(r"[:,\[](NaN|-?Infinity)[,\]}]", json.dumps(data_of(page)))
