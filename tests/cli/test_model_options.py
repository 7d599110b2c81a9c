"""Options of inspect and bench."""

from __future__ import annotations

import pytest

from lowbit.cli.options import make_parser
from lowbit.errors import ConfigError


def test_bench_takes_several_models_and_needs_no_data() -> None:
    args = make_parser().parse(["bench", "a.onnx", "b.onnx", "--threads", "2"])

    assert (args.models, args.data, args.threads, args.runs) == (
        ["a.onnx", "b.onnx"],
        "random",
        2,
        50,
    )


def test_inspect_takes_one_model() -> None:
    assert make_parser().parse(["inspect", "a.onnx", "--json"]).model == "a.onnx"
    with pytest.raises(ConfigError):
        make_parser().parse(["inspect"])
