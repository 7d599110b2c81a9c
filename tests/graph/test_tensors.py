"""Tensors wherever they are in a model: all are counted, and all survive writing."""

from __future__ import annotations

import numpy as np

from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.graph.tensors import tensors_size


def test_tensors_of_constants_and_branches_count(parse) -> None:
    weight = np.ones((4, 4), np.float32)
    model = parse(
        """g (float[4,4] x, bool c) => (float[4,4] y) {
          k = Constant <value = float[2] {1, 2}>()
          a = Add(x, w)
          y = If (c) <
            then_branch = yes () => (float[4,4] p) {
              h = Constant <value = float {3}>()
              p = Add(a, h)
            },
            else_branch = no () => (float[4,4] q) { q = Identity(a) }
          >
        }""",
        {"w": weight},
    )

    assert tensors_size(io.load(model)) == weight.nbytes + 2 * 4 + 4


def test_strings_survive_the_temporary_copy(parse) -> None:
    words = np.array(["a word of some length"] * 40, dtype=object)
    model = parse(
        "g (int64[1] i) => (string[1] y) { y = Gather(words, i) }",
        {"words": words},
    )

    with session(io.load(model)) as running:
        outputs = running.run(["y"], {"i": np.int64([3])})

    assert outputs[0].tolist() == ["a word of some length"]


def test_strings_that_may_be_fed_stay_inputs(parse, tmp_path) -> None:
    words = np.array(["a", "b"], dtype=object)
    model = io.load(
        parse(
            "g (int64[1] i, string[2] words) => (string[1] y) { y = Gather(words, i) }",
            {"words": words},
        )
    )

    io.save(model, tmp_path / "m.onnx")

    again = io.load(tmp_path / "m.onnx")
    assert [value.name for value in again.graph.inputs] == ["i", "words"]
    assert list(again.graph.initializers) == ["words"]
