"""What terminal output is made of: names, numbers, tables."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning.plan import FloatNode
from lowbit.report import tables
from lowbit.report.tables import (
    Name,
    Sentence,
    make_facts,
    make_table,
    nodes_table,
    reasons_table,
    shorten,
    shorten_among,
    show,
    stderr,
    stdout,
)

# Names


@given(st.text(), st.integers(0, 40))
def test_never_longer_than_allowed_and_unchanged_when_it_fits(text, width) -> None:
    short = shorten(text, width)

    assert len(short) <= width
    assert short == text or len(text) > width


def test_both_ends_stay() -> None:
    assert shorten("/features/features.18/Conv_output_0", 15) == "/featu...tput_0"


@given(st.text("ab/", max_size=20), st.lists(st.text("ab/", max_size=20)), st.integers(0, 24))
def test_among_others_it_is_never_longer_than_allowed_either(text, others, width) -> None:
    short = shorten_among(text, width, others)

    assert len(short) <= width
    assert short == text or len(text) > width


def test_names_that_differ_in_the_middle_stay_apart() -> None:
    layers = [
        f"/encoder/layer.{index}/attention/self/{kind}/MatMul_output_0"
        for index in (3, 10, 11)
        for kind in ("query", "key")
    ]

    assert len({shorten(name, 32) for name in layers}) < len(layers)
    for width in (26, 32, 40, 48):
        assert len({shorten_among(name, width, layers) for name in layers}) == len(layers), width
    assert shorten_among(layers[2], 32, layers) == "...layer.10/at...on/self/quer..."


def test_names_that_are_told_apart_are_shortened_as_ever() -> None:
    names = ["/features/features.18/Conv_output_0", "/stem/features.18/features.18/Conv_output_0"]

    assert shorten_among(names[0], 15, names) == shorten(names[0], 15)


def _printed(text: str, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False)
    console.print(Sentence(text))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_sentence_takes_two_lines_of_whole_words_and_says_that_there_is_more() -> None:
    text = "one of them is as long as it has to be, and then some more of it"

    assert _printed(text, 80) == [text]
    assert _printed(text, 36) == [
        "one of them is as long as it has to",
        "be, and then some more of it",
    ]
    assert _printed(text, 20) == ["one of them is as", "long as it has ..."]


@given(st.text(), st.integers(4, 60))
def test_a_sentence_never_takes_more_room_than_it_has(text, width) -> None:
    lines = _printed(text, width)

    assert len(lines) <= 2
    assert all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_table_never_breaks_a_name_over_lines(width) -> None:
    table = make_table("title", "tensor", "SQNR dB", figures=1)
    table.add_row(Name("/layer/" * 40 + "[bold]:x:/end"), "12.34")
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False)

    console.print(table)

    *_, row = console.file.getvalue().rstrip("\n").split("\n")
    assert len(row) <= width
    assert row.startswith("/layer/")
    assert "..." in row
    assert ":x:/end" in row
    assert row.rstrip().endswith("12.34")


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.345, "12.35"),
        (math.inf, "exact"),
        (-math.inf, "no signal"),
        (math.nan, "unknown"),
    ],
)
def test_decibels(value, text) -> None:
    assert tables.decibels(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (3_540_000, "3.5 MB"),
        (2_400_000_000, "2.4 GB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_sizes(value, text) -> None:
    assert tables.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.049, "0.05 s"), (3.21, "3.2 s"), (125.2, "2 min 05 s")]
)
def test_seconds(value, text) -> None:
    assert tables.seconds(value) == text


def test_cosines_and_counts() -> None:
    assert tables.cosine(1.0) == "1"
    assert tables.cosine(0.99912345) == "0.999123"
    assert tables.number(0.000123456) == "0.000123"
    assert tables.counted(1, "node") == "1 node"
    assert tables.counted(0, "bias", "biases") == "0 biases"


# Consoles


def test_names_are_no_markup(capsys) -> None:
    stdout().print("[bold]name[/bold] :smile: 12")

    assert capsys.readouterr().out == "[bold]name[/bold] :smile: 12\n"


def test_stdout_and_stderr_are_told_apart(capsys) -> None:
    stdout().print("result")
    stderr().print("progress")

    assert capsys.readouterr() == ("result\n", "progress\n")


def test_a_spec_is_described_by_its_kind() -> None:
    assert tables.described(None) == "float"
    assert tables.described(AccumulatorBias()) == "int32 accumulator"
    assert tables.described(IntegerSpec(format=IntegerFormat.INT8)) == "int8 sym minmax"


# Tables


def test_a_table_without_rows_is_not_shown(console) -> None:
    screen = console(40)

    show(screen, make_table("title", "a", "b"))
    show(screen, make_facts())

    assert screen.file.getvalue() == ""


def test_figures_stand_to_the_right_and_are_never_cut(console) -> None:
    table = make_table("title", "tensor", "SQNR dB", "cosine", figures=2)
    table.add_row(Name("x" * 100), "12.34", "0.999999")
    table.add_row(Name("y"), "1.23", "1")
    screen = console(40)

    show(screen, table)

    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    first, second = (line for line in lines if "12.34" in line or "1.23" in line)
    assert first.endswith(" 12.34   0.999999")
    assert second.endswith("  1.23          1")
    assert lines[-1] == ""


NODES = [
    FloatNode(node=f"n{i}", op_type=op, why=why)
    for i, (op, why) in enumerate(
        [("Cos", "unknown")] * 2
        + [("Sin", "unknown"), ("Exp", "unknown"), ("Log", "unknown"), ("Erf", "unknown")]
        + [("Conv", "excluded")] * 3
        + [("Add", "tail")]
    )
]


def test_reasons_are_counted_the_commonest_first(console) -> None:
    screen = console(100)

    show(screen, reasons_table(NODES, "in float"))

    rows = [line.split() for line in screen.file.getvalue().splitlines()[3:-1]]
    assert rows == [
        ["6", "unknown", "Cos", "x2,", "Sin,", "Exp,", "Log,", "..."],
        ["3", "excluded", "Conv", "x3"],
        ["1", "tail", "Add"],
    ]


def test_rarer_reasons_are_counted_together(console) -> None:
    screen = console(100)

    show(screen, reasons_table(NODES, "in float", most=1))

    rows = [line.split() for line in screen.file.getvalue().splitlines()[3:-1]]
    assert rows[1] == ["4", "2", "more", "reasons"]


def test_every_node_is_listed_with_its_reason(console) -> None:
    screen = console(100)

    show(screen, nodes_table(NODES))

    rows = [line.split() for line in screen.file.getvalue().splitlines()[3:-1]]
    assert rows == [[node.node, node.op_type, node.why] for node in NODES]
