"""A result on one screen, whatever the report holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from lowbit.evaluate.verdict import OutputVerdict, Verdict
from lowbit.planning.plan import FloatNode
from lowbit.report.summary import MOST_LINES, show_summary
from lowbit.report.values import PromotedRegion, Report, Score, Step


def score(name: str, db: float, before: float | None = None) -> Score:
    return Score(tensor=name, sqnr_db=db, cosine=0.99, max_error=0.1, upstream_db=before)


def report(**changes) -> Report:
    plain = {
        "preset": "A8W8",
        "target": "ryzen-ai",
        "version": "1",
        "data": "images",
        "calibration_samples": 8,
        "verification_samples": 4,
        "held_out": True,
        "outputs": (score("y", 30.0), score("z", 20.0)),
        "layers": (score("a", 40.0), score("b", 25.0, 40.0), score("c", 30.0, 25.0)),
        "quantized": {"activation int8": 3, "weight int8": 5},
        "float_nodes": (FloatNode(node="n", op_type="Cos", why="unknown"),),
        "steps": (Step(name="equalization", before=1.0, after=2.0, kept=False),),
        "size_before": 4000,
        "size_after": 1000,
        "seconds": {"load": 1.0, "refine": 2.0},
    }
    return Report(**{**plain, **changes})


def shown(value: Report, console: Console, **more) -> str:
    show_summary(console, value, "q.onnx", **more)
    return console.file.getvalue()


def test_the_worst_output_comes_first_and_the_next_step_last(console) -> None:
    text = shown(report(), console(80), next_step="look at it")

    assert text.index("20.00 dB") < text.index("30.00 dB")
    assert "4.0 times smaller" in text
    assert "5 x weight int8, 3 x activation int8" in text
    assert "1 node (Cos): unknown" in text
    assert "equalization dropped" in text
    assert text.rstrip().endswith("next: look at it")
    rows = [line.split() for line in text.splitlines()]
    assert ["b", "40.00", "25.00"] in rows


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(categories=["L", "Zs"]), max_size=400), max_size=12),
    st.integers(0, 30),
    st.sampled_from([60, 80, 200]),
)
def test_it_always_fits_on_a_screen(notes, count, width) -> None:
    import io

    screen = Console(file=io.StringIO(), width=width, markup=False, emoji=False)
    many = report(
        notes=tuple(notes),
        outputs=tuple(score(f"/out{i}" * 20, float(i)) for i in range(count)),
        layers=tuple(score(f"/t{i}" * 30, float(-i), 60.0) for i in range(count)),
        float_nodes=tuple(
            FloatNode(node=f"n{i}", op_type=f"Op{i}", why=f"reason {i} " * 9) for i in range(count)
        ),
        quantized={f"activation kind {i}": 1 for i in range(count)},
    )

    text = shown(many, screen, next_step="look at it")

    assert len(text.splitlines()) <= MOST_LINES
    assert "next: look at it" in text


def test_notes_that_find_no_room_are_counted(console) -> None:
    text = shown(report(notes=("word " * 60,) * 9), console(80), next_step="look at it")

    assert "notes more with --verbose" in text


def test_a_doubt_of_the_figures_is_shown_whatever_room_is_left(console) -> None:
    crowded = report(notes=("word " * 60,) * 9, doubts=("inputs look wrong",))

    text = shown(crowded, console(80), next_step="look at it")

    assert text.startswith("note: inputs look wrong")
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("level", ["good", "ruined"])
def test_a_verdict_comes_on_top(console, level) -> None:
    figures = {"value": 20.0, "standard_error": 0.5, "sqnr_db": 20.0, "margin_db": 5.0}
    levels = dict.fromkeys(("level", "worst_level", "best_level"), level)
    words = {"output": "y", "kind": "values", "figure": "SQNR", "unit": "dB"}
    row = OutputVerdict(**words, **levels, **figures)
    verdict = Verdict(level=level, outputs=(row,), samples=4)

    text = shown(report(verdict=verdict), console(100))

    assert text.startswith(f"verdict: {level} (")


def test_what_samples_were_for_is_told_in_one_line(console) -> None:
    told = {
        "8 to calibrate, 4 others to verify": {},
        "8 to calibrate, 4 of the same to verify": {"held_out": False},
        "8 to calibrate (saved statistics), 4 others to verify": {"reused_statistics": True},
        "4 to verify, none needed to calibrate": {"calibration_samples": 0},
        "8 to calibrate": {"verification_samples": 0},
        "none": {"calibration_samples": 0, "verification_samples": 0},
    }
    for words, changes in told.items():
        text = shown(report(**changes), console(80))
        assert ["samples", *words.split()] in [line.split() for line in text.splitlines()]


def region(first: str, last: str, nodes: int, share: float, wide: str = "float") -> PromotedRegion:
    return PromotedRegion(
        first=first,
        last=last,
        nodes=nodes,
        format=wide,
        multiply_adds=share,
        elements=share,
        why="it is not usable without",
    )


def test_all_that_was_promoted_is_added_up_and_its_largest_part_named(console) -> None:
    regions = (
        region("a", "b", 3, 0.1),
        region("c", "d", 5, 0.33),
        region("e", "e", 1, 0.02, "int16"),
    )

    text = shown(report(promoted=regions), console(80))

    words = " ".join(text.split())
    assert "43% to float, 2% to int16 of the multiply-adds: 9 nodes in 3 regions, " in words
    assert "the largest c .. d" in words
    alone = shown(report(promoted=regions[-1:]), console(80))
    assert "2% to int16 of the multiply-adds: 1 node, e" in alone


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (4000, 1000, "4.0 times smaller"),
        (1000, 2500, "2.5 times larger"),
        (0, 100, "of constants)"),
    ],
)
def test_constants_that_become_larger_are_said_to(console, before, after, words) -> None:
    assert words in shown(report(size_before=before, size_after=after), console(80))


def test_a_reason_is_not_cut_in_its_middle(console) -> None:
    node = FloatNode(
        node="n", op_type="Reshape", why="between matrix layers of an attention network"
    )

    text = shown(report(float_nodes=(node,) * 114), console(60))

    words = "114 nodes (Reshape): between matrix layers of an attention network"
    assert words in " ".join(text.split())
