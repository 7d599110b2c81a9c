"""Sessions as deployed: what is left of the graph, and what kernels get wrong."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from lowbit.graph.profiling import DeployedSession, saturates_int8

Open = Callable[[onnx.ModelProto], DeployedSession]


@pytest.fixture
def deploy(tmp_path: pathlib.Path) -> Open:
    """Write a model and open it as deployed."""

    def opened(model: onnx.ModelProto) -> DeployedSession:
        path = tmp_path / "net" / "model.onnx"
        path.parent.mkdir()
        onnx.save(model, path)
        notes = tmp_path / "notes"
        notes.mkdir()
        return DeployedSession(path, str(notes), threads=1)

    return opened


def test_a_run_is_timed(parse, deploy: Open) -> None:
    session = deploy(parse("g (float[2] x) => (float[2] y) { y = Sin(x) }"))

    assert session.run({"x": np.float32([1, 2])}) > 0


def test_shares_of_operators_add_up_to_one(parse, deploy: Open) -> None:
    session = deploy(
        parse("g (float[64,64] x) => (float[64,64] y) { a = Sin(x) b = Cos(a) y = Tan(b) }")
    )
    feed = {"x": np.zeros((64, 64), np.float32)}

    assert session.share_of(["Sin", "Cos", "Tan"], feed) == pytest.approx(1)
    assert 0 < session.share_of(["Cos"], feed) < 1
    assert session.share_of(["Conv"], feed) == 0


def test_operators_that_still_read_a_dequantized_tensor_are_named(
    parse, floats, deploy: Open
) -> None:
    session = deploy(
        parse(
            """g (float[8,16] x) => (float[8,8] y, float[8,16] z) {
              q = QuantizeLinear(x, s, u)
              d = DequantizeLinear(q, s, u)
              e = DequantizeLinear(w, t, v)
              [product] m = MatMul(d, e)
              n = QuantizeLinear(m, s, u)
              y = DequantizeLinear(n, s, u)
              [sine] z = Sin(d)
            }""",
            {
                "w": (10 * floats(16, 8)).astype(np.int8),
                "s": np.array(0.1, np.float32),
                "t": np.array(0.05, np.float32),
                "u": np.array(128, np.uint8),
                "v": np.array(0, np.int8),
            },
        )
    )

    session.share_of(["Sin"], {"x": floats(8, 16)})

    # onnxruntime has a kernel for the product of integers, but none for their sine.
    assert session.unfused() == {"Sin": ["sine"]}


@pytest.fixture
def fresh() -> Iterator[None]:
    saturates_int8.cache_clear()
    yield
    saturates_int8.cache_clear()


@pytest.mark.parametrize("saturated", [True, False])
@pytest.mark.usefixtures("fresh")
def test_sums_that_do_not_fit_16_bits_are_noticed(
    monkeypatch: pytest.MonkeyPatch, *, saturated: bool
) -> None:
    class Product:
        """Multiplies as a processor with or without VNNI does: pairs of products saturate."""

        def __init__(self, model: bytes, *_arguments: object, **_options: object) -> None:
            (weight,) = onnx.load_from_string(model).graph.initializer
            self.weight = onnx.numpy_helper.to_array(weight).astype(np.int64)

        def run(self, _: None, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            products = feed["x"].astype(np.int64)[:, :, None] * self.weight[None]
            pairs = products[:, 0::2] + products[:, 1::2]
            return [(np.clip(pairs, -32768, 32767) if saturated else pairs).sum(axis=1)]

    monkeypatch.setattr(ort, "InferenceSession", Product)

    assert saturates_int8() is saturated


@pytest.mark.usefixtures("fresh")
def test_the_processor_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = saturates_int8()
    monkeypatch.delattr(ort, "InferenceSession")

    assert saturates_int8() is first
