"""The words of choices are repeated where nothing heavy is imported: here they are held together."""

from __future__ import annotations

from typing import get_args

import pytest

from lowbit.api.compare import Effort
from lowbit.api.convert import FORMATS
from lowbit.cli import option_groups, options
from lowbit.cli.completion import SHELLS
from lowbit.config import config, methods
from lowbit.data import PREPROCESSINGS, preprocessing
from lowbit.graph import openvino
from lowbit.search.goal_strategies import STRATEGIES
from lowbit.targets.builtin import BUILTIN
from lowbit.transforms.rewrites import REWRITES


def test_choices_are_those_of_the_library() -> None:
    assert set(option_groups.METHODS) == set(methods.BY_NAME)
    assert set(option_groups.WEIGHT_METHODS) == set(methods.FOR_WEIGHTS)
    assert option_groups.RUNTIMES == openvino.RUNTIMES
    assert get_args(config.Head) == option_groups.HEADS
    assert get_args(config.Domain) == options.DOMAINS
    assert tuple(PREPROCESSINGS) == option_groups.PREPROCESSINGS
    assert get_args(preprocessing.Layout) == option_groups.LAYOUTS
    assert get_args(preprocessing.ChannelOrder) == option_groups.CHANNEL_ORDERS
    assert get_args(Effort) == options.EFFORTS
    assert options.FLOAT_FORMATS == FORMATS
    assert tuple(SHELLS) == options.SHELLS
    assert tuple(STRATEGIES) == option_groups.STRATEGIES


def test_every_rewrite_of_a_target_can_be_named() -> None:
    for target in BUILTIN.values():
        assert {*target.transforms, *target.arithmetic} <= set(REWRITES)


WORDS = {
    "quantize": ["m.onnx", "q.onnx", "--data", "d"],
    "plan": ["m.onnx"],
    "compare": ["m.onnx", "q.onnx", "--data", "d"],
    "inspect": ["m.onnx"],
    "bench": ["m.onnx"],
    "sweep": ["m.onnx", "--presets", "A8W8,BF16", "--data", "d"],
    "infer": ["m.onnx", "--data", "d", "--output", "o"],
    "evaluate": ["a", "b"],
    "convert": ["m.onnx", "q.onnx", "--to", "bf16"],
    "presets": [],
    "targets": [],
}


@pytest.mark.parametrize("command", WORDS)
def test_every_command_can_do_with_what_it_needs(command) -> None:
    args = options.make_parser().parse([command, *WORDS[command]])

    assert args.command == command


def test_the_parser_knows_these_commands_and_no_others() -> None:
    assert list(options.make_parser().commands) == list(WORDS)


def test_options_that_are_not_given_change_nothing() -> None:
    args = options.make_parser().parse(["quantize", *WORDS["quantize"]])

    given = {name: value for name, value in vars(args).items() if value not in (None, False, [])}
    assert given == {"command": "quantize", "model": "m.onnx", "output": "q.onnx", "data": "d"}


def test_options_that_may_be_repeated_add_up() -> None:
    words = ["--exclude", "a*", "--exclude", "re:b", "--exclude-op", "Gemm", "--skip-rewrite", "r"]

    args = options.make_parser().parse(["plan", "m.onnx", *words])

    assert (args.exclude, args.exclude_op, args.skip_rewrite) == (["a*", "re:b"], ["Gemm"], ["r"])
    # Lists of one parse are not those of the next.
    assert options.make_parser().parse(["plan", "m.onnx"]).exclude == []


def test_every_option_has_a_help_text() -> None:
    for command in options.make_parser().commands.values():
        for action in command._actions:
            assert action.help, action.dest
