"""Values of options, and a parser that names the nearest word."""

from __future__ import annotations

import argparse

import pytest

from lowbit.cli import parser as values
from lowbit.cli.parser import Parser, one_of
from lowbit.errors import ConfigError


def test_values_are_read() -> None:
    assert values.count("12") == 12
    assert values.percent("99.9") == 99.9
    assert values.factor("1/255") == 1 / 255
    assert values.decibels("-3.5") == -3.5
    assert values.channels("0.5") == (0.5,)
    assert values.channels("-1,0,1/2") == (-1.0, 0.0, 0.5)
    assert values.size("256") == 256
    assert values.size("480,640") == (480, 640)
    assert values.pattern("re:a|b") == "re:a|b"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (values.count, "1.5"),
        (values.count, "-1"),
        (values.percent, "101"),
        (values.factor, "1/x"),
        (values.factor, "nan"),
        (values.channels, "1,,2"),
        (values.size, "12x12"),
        (values.size, "0"),
        (values.pattern, "re:("),
    ],
)
def test_values_that_mean_nothing_are_refused(kind, text) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        kind(text)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (values.count, "0", "'0' is not a whole number of at least 1"),
        (values.percent, "50", "50 is not above 50 and at most 100"),
        (values.positive, "-2", "-2 is not above zero"),
        (values.factor, "1/0", "'1/0' is not a number"),
        (values.size, "1,2,3", "'1,2,3' is neither one side nor height,width"),
        (values.pattern, "re:(", "'(' is no regular expression"),
    ],
)
def test_what_was_expected_is_said(kind, text, words) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        kind(text)

    assert words in str(caught.value)


def test_one_of_some_words() -> None:
    choose = one_of(("minmax", "mse"))

    assert choose("mse") == "mse"
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        choose("mze")
    assert str(caught.value) == "'mze' is unknown; did you mean 'mse'? (known: minmax, mse)"


# The parser


@pytest.fixture
def parser() -> Parser:
    made = Parser(prog="tool")
    commands = made.add_subparsers(dest="command", parser_class=Parser)
    run = commands.add_parser("run", prog="tool run")
    run.add_argument("model")
    run.add_argument("--mean", type=values.channels)
    run.add_argument("--limit", type=values.count)
    run.add_argument("--quiet", action="store_true")
    made.commands = commands.choices
    return made


def test_a_command_and_its_options_are_read(parser) -> None:
    args = parser.parse(["run", "m.onnx", "--limit", "3", "--quiet"])

    assert (args.command, args.model, args.limit, args.quiet) == ("run", "m.onnx", 3, True)
    assert parser.parse([]).command is None


@pytest.mark.parametrize(
    "words",
    [["--mean", "-1,-0.5,0"], ["--mean=-1,-0.5,0"], ["--mean", "-1,-.5,0"]],
)
def test_negative_values_belong_to_the_option_before_them(parser, words) -> None:
    assert parser.parse(["run", "m.onnx", *words]).mean == (-1.0, -0.5, 0.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runn", "m"], "unknown command 'runn'; did you mean 'run'? (known: run)"),
        (["run", "m", "--limt", "3"], "unknown option '--limt'; did you mean '--limit'?"),
        (["run", "m", "--lim", "3"], "unknown option '--lim'; did you mean '--limit'?"),
        (["run", "m", "-q"], "unknown option '-q'"),
        (["run", "m", "--limit=0"], "'0' is not a whole number"),
        (["run"], "the following arguments are required: model"),
        (["--verbose"], "unknown option '--verbose'"),
    ],
)
def test_complaints_are_one_line_that_says_where_help_is(parser, words, message) -> None:
    with pytest.raises(ConfigError) as caught:
        parser.parse(words)

    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert text.endswith("--help`)")


def test_words_after_two_dashes_are_no_options(parser) -> None:
    assert parser.parse(["run", "--", "--strange-name.onnx"]).model == "--strange-name.onnx"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("sr=16000", ("sr", 16000)),
        ("gain=0.5", ("gain", 0.5)),
        ("flag=true", ("flag", True)),
        ("a=b=[1, 2]", ("a=b", [1, 2])),
        ("language=en", ("language", "en")),
    ],
)
def test_a_fixed_input_has_a_value(word: str, expected: object) -> None:
    assert values.fixed_input(word) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("x=1,3,320,320", ("x", (1, 3, 320, 320))),
        ("input:0=N,-1", ("input:0", ("N", -1))),
        ("scalar=", ("scalar", ())),
    ],
)
def test_an_input_has_a_shape(word: str, expected: object) -> None:
    assert values.input_shape(word) == expected


@pytest.mark.parametrize("word", ["sr", "=1", ""])
def test_what_is_no_assignment_is_refused(word: str) -> None:
    for kind in (values.fixed_input, values.input_shape):
        with pytest.raises(argparse.ArgumentTypeError, match="is not of the form NAME=VALUE"):
            kind(word)


@pytest.mark.parametrize("word", ["x=1,,3", "x=1,-3", "x=3.5"])
def test_what_is_no_shape_is_refused(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no shape, such as 1,3,320,320"):
        values.input_shape(word)
