"""What a model is, as it is printed."""

from __future__ import annotations

import msgspec

from lowbit.report.inspection import Inspection, TargetOutlook, TensorShape, show_inspection

FOUND = Inspection(
    model="a.onnx",
    producer="",
    ir_version=8,
    opsets={"ai.onnx": 17},
    inputs=(TensorShape(name="x", dtype="float", shape="1x3"),),
    outputs=(TensorShape(name="y", dtype="float", shape="1"),),
    operators={f"Op{i:02d}": 20 - i for i in range(15)},
    constants=1,
    constant_bytes=4,
    quantized_tensors=0,
    targets=(
        TargetOutlook(target="t", preset="P", activations=3, weights=2, nodes=9, float_nodes=0),
        TargetOutlook(target="u", preset="Q", nodes=9, float_nodes=4, reason="unknown"),
        TargetOutlook(target="v", preset="R", refused="is quantized already"),
    ),
)


def test_rare_operators_are_counted_unless_all_are_asked_for(console) -> None:
    few, every = console(100), console(100)

    show_inspection(few, FOUND, everything=False)
    show_inspection(every, FOUND, everything=True)

    assert "3 operators more (--all)" in few.file.getvalue()
    assert "Op14" not in few.file.getvalue()
    assert "6 Op14" in " ".join(every.file.getvalue().split())


def test_each_target_says_what_stays_in_float_or_why_it_refuses(console) -> None:
    screen = console(100)

    show_inspection(screen, FOUND, everything=False)

    lines = [" ".join(line.split()) for line in screen.file.getvalue().splitlines()]
    assert "t P 3 + 2 0 of 9 nodes" in lines
    assert "u Q 0 + 0 4 of 9 nodes, mostly: unknown" in lines
    assert "v R is quantized already" in lines


def test_what_every_target_refuses_for_one_reason_is_said_once(console) -> None:
    screen = console(100)
    refused = tuple(TargetOutlook(target=t, preset="P", refused="is empty") for t in "tu")

    show_inspection(screen, msgspec.structs.replace(FOUND, targets=refused), everything=False)

    assert screen.file.getvalue().count("is empty") == 1
