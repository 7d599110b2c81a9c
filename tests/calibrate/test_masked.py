import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import lowbit
from lowbit.calibrate.masked import kept_tokens, mask_input, without_padding
from lowbit.data.inputs import InputInfo
from lowbit.targets.builtin import find_target

_RANDOM = np.random.default_rng(0)
_KEPT = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 4, 6), 1), ((2, 3, 4, 6), 2), ((8, 6), 0)], ids=["3d", "heads", "flat"]
)
def test_padded_tokens_are_left_out_wherever_tokens_lie(shape: tuple[int, ...], axis: int) -> None:
    array = _RANDOM.normal(size=shape).astype(np.float32)
    padded = array.copy()
    rows = padded.reshape(2, 4, 6) if axis == 0 else np.moveaxis(padded, axis, 1)
    rows[~_KEPT] = 1000

    found = without_padding(padded, _KEPT)

    assert found.ndim == array.ndim
    assert found.shape[axis] == _KEPT.sum()
    assert found.shape[-1] == 6
    assert found.max() < 1000
    assert found.size == array.size * _KEPT.sum() // 8


def test_what_has_no_axis_of_tokens_stays() -> None:
    pooled = np.ones((2, 6), np.float32)

    assert without_padding(pooled, _KEPT) is pooled
    assert without_padding(pooled, None) is pooled


def test_a_mask_is_one_beside_tokens_of_the_same_shape() -> None:
    ids = InputInfo("input_ids", np.dtype(np.int64), (1, 8))
    mask = InputInfo("attention_mask", np.dtype(np.int64), (1, 8))
    image = InputInfo("mask", np.dtype(np.float32), (8, 8))

    assert mask_input([ids, mask]) == "attention_mask"
    assert mask_input([image]) == ""
    assert kept_tokens({"attention_mask": np.ones((1, 8))}, "attention_mask") is None
    assert kept_tokens({"attention_mask": np.zeros((1, 8))}, "attention_mask") is None


def _fixed_length() -> onnx.ModelProto:
    """Return a layer on tokens; the last row of its table, which pads, is a hundred times as large."""
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (int64[1,8] input_ids, int64[1,8] attention_mask) => (float[1,8,4] y)
    <float[20,32] table, float[32,4] w> {
        e = Gather(table, input_ids)
        h = MatMul(e, w)
        m = Cast<to=1>(attention_mask)
        k = Unsqueeze(m, two)
        y = Mul(h, k)
    }"""
    model = onnx.parser.parse_model(text)
    table = _RANDOM.normal(size=(20, 32)).astype(np.float32)
    table[19] = 100
    made = {"table": table, "w": _RANDOM.normal(size=(32, 4)).astype(np.float32)}
    del model.graph.initializer[:]
    made["two"] = np.array([2])
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in made.items())
    return model


@pytest.mark.parametrize("counts", [False, True])
def test_padding_decides_no_range_where_the_length_is_fixed(counts: bool) -> None:
    ids = _RANDOM.integers(0, 19, (3, 1, 8))
    mask = np.ones((3, 1, 8), np.int64)
    ids[:, :, 5:], mask[:, :, 5:] = 19, 0
    feeds = [{"input_ids": a, "attention_mask": b} for a, b in zip(ids, mask, strict=True)]
    target = msgspec.structs.replace(find_target("onnxruntime"), calibrate_padding=counts)

    result = lowbit.quantize(
        _fixed_length(), data=feeds, preset="U8S8", target=target, allow_ruined=True, promote=False
    )

    assert (result.stats.tensors["e"].high == 100) == counts
