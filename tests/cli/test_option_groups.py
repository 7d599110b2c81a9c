"""Options that several commands share are the same in each of them."""

from __future__ import annotations

import pytest

from lowbit.cli.options import make_parser

SHARED = {
    "quantize": {"--data", "--preset", "--exclude", "--preprocess"},
    "plan": {"--preset", "--exclude"},
    "compare": {"--data", "--preprocess"},
    "infer": {"--data", "--preprocess"},
}


@pytest.mark.parametrize("option", ["--data", "--preset", "--exclude", "--preprocess"])
def test_an_option_says_the_same_wherever_it_is(option) -> None:
    commands = make_parser().commands
    found = {
        name: action.help
        for name, command in commands.items()
        for action in command.actions()
        if option in action.option_strings and name in SHARED
    }

    assert set(found) == {name for name, options in SHARED.items() if option in options}
    assert len(set(found.values())) == 1
