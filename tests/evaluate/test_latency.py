"""How long models take, in words; the times themselves are the machine's."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.api.compare import compare
from lowbit.evaluate import latency as module
from lowbit.evaluate.latency import Unfused, _unfused, _verdict, measure_latency
from lowbit.graph import io


def test_both_models_are_timed_and_what_did_not_fuse_is_named() -> None:
    feeds = small_feeds(4)
    quantized = lowbit.quantize(small_cnn(), data=feeds, preset="A16W8").quantized

    latency = compare(small_cnn(), quantized, feeds, budget="none", timed=True).latency

    assert latency.float_ms > 0
    assert latency.quantized_ms > 0
    assert 0 < latency.conversion_share < 1
    conv = next(row for row in latency.unfused if row.op_type == "Conv")
    assert "16 bits" in conv.why
    assert len(conv.nodes) == conv.count >= 1


class FakeSession:
    """A deployed session whose runs take the seconds it is told to."""

    taken = iter(())

    def __init__(self, *_) -> None:
        pass

    def run(self, _) -> float:
        return next(self.taken)

    def share_of(self, op_types, _) -> float:
        assert set(op_types) == {"QuantizeLinear", "DequantizeLinear"}
        return 0.25

    def unfused(self) -> dict[str, list[str]]:
        return {"Clip": ["a"], "Conv": ["b", "c"]}


def test_the_median_of_runs_in_turn_is_told(monkeypatch) -> None:
    # The first run of each is not counted; of the others, float runs take 1, 2 and 9 ms.
    times = [5.0, 5.0, 0.001, 0.004, 0.009, 0.003, 0.002, 0.009]
    monkeypatch.setattr(FakeSession, "taken", iter(times))
    monkeypatch.setattr(module, "DeployedSession", FakeSession)
    monkeypatch.setattr(module, "_RUNS", 3)
    monkeypatch.setattr(module, "_LONGEST", float("inf"))
    model = io.load(small_cnn())

    found = measure_latency(model, model, small_feeds(1)[0], threads=2)

    assert (found.float_ms, found.quantized_ms) == (pytest.approx(2), pytest.approx(4))
    assert (found.runs, found.threads, found.conversion_share) == (3, 2, 0.25)
    assert [(row.op_type, row.count) for row in found.unfused] == [("Conv", 2), ("Clip", 1)]
    assert found.verdict == _verdict(found.float_ms, found.quantized_ms, 0.25, found.unfused)


def test_slower_is_said_plainly() -> None:
    unfused = (Unfused(op_type="Conv", count=3, why="", nodes=("a", "b", "c")),)

    slow = _verdict(10, 15, 0.4, unfused)
    assert "slower here: 15.00 ms against 10.00 ms" in slow
    assert "40%" in slow
    assert "3 Conv" in slow
    assert "2.00 times as fast" in _verdict(10, 5, 0, ())
    assert "not fused" not in _verdict(10, 15, 0.4, ())


@pytest.mark.parametrize(
    ("dtype", "op_type", "words"),
    [
        (np.int16, "Conv", "16 bits"),
        (np.int8, "ConvTranspose", "no int8 kernel"),
        (np.int8, "Clip", "not folded into the quantizer after it"),
        (np.int8, "Softmax", "does not fuse the pattern"),
    ],
)
def test_why_an_operator_stays_in_float(dtype, op_type, words) -> None:
    tensor = ir.tensor(np.zeros(3, dtype), name="w")
    value = ir.Value(name="w", const_value=tensor, type=ir.TensorType(tensor.dtype))
    graph = ir.Graph([], [], nodes=[], initializers=[value])

    (row,) = _unfused({op_type: ["n1", "n2"]}, ir.Model(graph, ir_version=8))

    assert words in row.why
    assert (row.op_type, row.count, row.nodes) == (op_type, 2, ("n1", "n2"))
