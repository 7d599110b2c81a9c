import json
import re

import pytest
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.api import compare, examine
from lowbit.errors import OutputError
from lowbit.report.html import render_report, write_report
from lowbit.report.values import Report, Score


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
    assert {row["tensor"] for row in data["report"]["tensors"]} >= {"input", "r1", "w1"}
    assert data["versions"]["numpy"]
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "@import" not in page
    assert "Permission is hereby granted" in page  # the library's licence
    assert not re.search(r"@[A-Z]+@", page)


def test_names_cannot_become_markup(report) -> None:
    name = "</script><script>alert(1)</script>@STYLE@<!--"
    score = Score(tensor=name, sqnr_db=1.0, cosine=1.0, max_error=0.0)
    hostile = Report(
        **{f: getattr(report, f) for f in report.__struct_fields__ if f != "layers"},
        layers=(score,),
    )

    page = render_report(hostile, title=name)

    assert "<script>alert" not in page
    assert data_of(page)["report"]["layers"][0]["tensor"] == name


def test_a_page_is_written_whole_or_not_at_all(report, tmp_path) -> None:
    write_report(report, tmp_path / "a.html")

    assert (tmp_path / "a.html").stat().st_size > 50_000
    with pytest.raises(OutputError):
        write_report(report, tmp_path / "no" / "a.html")
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]


def test_a_run_is_examined_on_its_verification_samples() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(8), limit=6, held_out=2, preset="A16W8")

    report = examine(small_cnn(), result)

    # Equalized weights are known here, where comparing files cannot tell them.
    assert report.budget is not None
    assert report.budget.float_sqnr_db > 60
    assert (report.verification_samples, report.calibration_samples) == (2, 6)
    assert report.quantized == result.report.quantized
