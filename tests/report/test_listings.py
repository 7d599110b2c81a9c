"""Listings of a plan, presets, targets and results, from values made by hand."""

from __future__ import annotations

import math

import pytest

from lowbit.config.presets import PRESETS, PURPOSES
from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.evaluate.benchmark import Timing
from lowbit.evaluate.folders import Evaluation, FileScore, Summary
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning.plan import AlignedGroup, BiasPlan, FloatNode, Plan, TensorPlan
from lowbit.report.listings import (
    show_evaluation,
    show_plan,
    show_presets,
    show_targets,
    show_timings,
)
from lowbit.targets.builtin import BUILTIN, find_target

INT8 = IntegerSpec(format=IntegerFormat.INT8)


def tensor(name: str, **fields) -> TensorPlan:
    chosen = {"role": "activation", "spec": INT8, "leader": name, "observe": name, "why": "needed"}
    return TensorPlan(name=name, **{**chosen, **fields})


PLAN = Plan(
    preset="A8W8",
    target="onnxruntime",
    tensors=(
        tensor("x"),
        tensor("moved", leader="x", why="output of Reshape r; same numbers as x"),
        tensor("p", range=(0.0, 1.0)),
        tensor("/long" * 60, role="weight"),
    ),
    biases=(
        BiasPlan(
            node="conv",
            tensor="b",
            index=2,
            spec=AccumulatorBias(),
            input="x",
            weight="w",
            why="bias",
        ),
    ),
    groups=(
        AlignedGroup(node="cat", op_type="Concat", rule="merged", inputs=("x",), outputs=("p",)),
    ),
    float_nodes=tuple(
        FloatNode(node=f"node{i}", op_type=f"Op{i % 6}", why="not known" if i < 9 else "excluded")
        for i in range(10)
    ),
)


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("everything", [False, True])
def test_every_decision_is_shown_within_the_width(console, width, everything) -> None:
    screen = console(width)

    show_plan(screen, PLAN, find_target("onnxruntime"), nodes=30, everything=everything)

    text = screen.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert ("output of Reshape r" in text) == everything
    for words in (
        "3 activations, 1 weight, 1 bias",
        "10 of 30 nodes",
        "1 group of tensors",
        "int8 sym minmax 0..1",
        "int32 accumulator",
        "Op0 x2, Op1 x2, Op2 x2, Op3, ...",
        "stays in float, on the CPU",
    ):
        assert words in text
    assert "same numbers as" not in text
    assert ("node7" in text) == everything
    assert text.index("not known") < text.index("excluded")


def rows_of(text: str, first: str) -> list[str]:
    """Return the words of the line that begins with a word."""
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


def test_a_wide_terminal_has_a_line_a_tensor(console) -> None:
    screen = console(160)

    show_plan(screen, PLAN, find_target("onnxruntime"), nodes=30, everything=True)

    assert rows_of(screen.file.getvalue(), "moved") == (
        "moved int8 sym minmax x output of Reshape r".split()
    )


def test_a_narrow_one_tells_what_shares_a_scale_after_the_reason(console) -> None:
    screen = console(80)

    show_plan(screen, PLAN, find_target("onnxruntime"), nodes=30, everything=True)

    assert "output of Reshape r; shares with x" in screen.file.getvalue()


def test_presets_have_their_formats_and_target_where_there_is_room(console) -> None:
    screen = console(160)
    chosen = [PRESETS["XINT8"], PRESETS["U8S8"], PRESETS["BF16"]]

    show_presets(screen, chosen)

    text = " ".join(screen.file.getvalue().split())
    assert max(map(len, screen.file.getvalue().splitlines())) <= 160
    for words in (
        ("int8 sym pow2 mse", "int8 sym pow2 mse", "int8 sym pow2 mse", "ryzen-ai-cnn"),
        ("uint8 asym mse", "int8 sym mse", "int32 accumulator", "onnxruntime"),
        ("bfloat16", "bfloat16", "bfloat16", "ryzen-ai-float"),
    ):
        assert " ".join(words) in text


def test_every_preset_is_in_one_group_that_says_where_to_start(console) -> None:
    screen = console(80)

    show_presets(screen, list(PRESETS.values()))

    lines = screen.file.getvalue().splitlines()
    # In its table a name is followed by spaces, in a sentence by one.
    names = [
        line.split()[0] for line in lines if "  " in line.strip() and line.split()[0] in PRESETS
    ]
    assert sorted(names) == sorted(PRESETS)
    for purpose in PURPOSES:
        assert purpose.title in lines
    assert max(map(len, lines)) <= 80


def test_timings_are_told_beside_the_first(console) -> None:
    screen = console(100)
    plain = {"runs": 9, "low_ms": 1.0, "high_ms": 9.0}
    first = Timing(model="a", median_ms=4.0, ratio=1.0, ratio_low=1.0, ratio_high=1.0, **plain)
    other = Timing(model="b", median_ms=2.0, ratio=2.0, ratio_low=1.5, ratio_high=2.5, **plain)

    show_timings(screen, [first, other], threads=2, where="CPUExecutionProvider")

    text = screen.file.getvalue()
    assert rows_of(text, "a") == "a 4 1 to 9".split()
    assert rows_of(text, "b") == "b 2 1 to 9 2.00 1.50 to 2.50".split()
    assert "CPUExecutionProvider, 2 threads" in text
    assert "9 runs of each" in text


def test_targets_have_their_formats_and_kind_of_scale(console) -> None:
    screen = console(200)

    show_targets(screen, [BUILTIN[n] for n in ("ryzen-ai-cnn", "onnxruntime", "ryzen-ai-float")])

    text = screen.file.getvalue()
    assert text.count("bfloat16 float16 bfp mx") == 4  # activations and weights of two targets
    assert "power-of-two" in rows_of(text, "ryzen-ai-cnn")
    assert "float" in rows_of(text, "onnxruntime")
    assert "`lowbit targets NAME` prints one as JSON" in text


# Two folders of results


def score(index: int, cosine: float, **more) -> FileScore:
    plain = {"l2": 0.0123456, "psnr": 33.333, "ssim": math.nan, "shape": (1, 5)}
    return FileScore(name=f"{index}.npy", cosine=cosine, **{**plain, **more})


def evaluation(*files: FileScore) -> Evaluation:
    worst = Summary(figure="cosine", mean=0.5, worst=0.25, worst_name="3.npy")
    return Evaluation(baseline="a", quantized="b", files=files, summary=(worst,))


def test_figures_of_every_file_are_shown(console) -> None:
    screen = console(100)
    same = score(1, 1.0, l2=0.0, psnr=math.inf, ssim=1.0, shape=())

    show_evaluation(screen, evaluation(score(0, 0.75), same), everything=False)

    text = screen.file.getvalue()
    assert rows_of(text, "0.npy") == ["0.npy", "1x5", "0.750000", "0.0123", "33.33", "-"]
    assert rows_of(text, "1.npy") == ["1.npy", "scalar", "1", "0", "equal", "1"]
    assert rows_of(text, "cosine") == ["cosine", "similarity", "0.500000", "0.250000", "3.npy"]
    assert "2 results" in text


def test_of_many_files_those_that_differ_most_are_shown(console) -> None:
    files = [score(i, 1 - i / 100) for i in range(30)]
    files.append(score(30, math.nan))
    shown, all_of_them = console(100), console(100)

    show_evaluation(shown, evaluation(*files), everything=False)
    show_evaluation(all_of_them, evaluation(*files), everything=True)

    names = [
        w[0] for line in shown.file.getvalue().splitlines() if (w := line.split()) and "npy" in w[0]
    ]
    # What cannot be told counts as the worst.
    assert names == ["30.npy", *(f"{i}.npy" for i in range(29, 10, -1))]
    assert "the 20 that differ most (--all lists every file)" in " ".join(
        shown.file.getvalue().split()
    )
    assert all(f"{i}.npy " in all_of_them.file.getvalue() for i in range(31))
