import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.data import open_data
from lowbit.data.inputs import InputInfo
from lowbit.data.padding import find_mask, unpadded

_INT64 = np.dtype(np.int64)
_IDS = InputInfo("input_ids", _INT64, ("n", "t"))
_MASK = InputInfo("attention_mask", _INT64, ("n", "t"))
_CACHE = InputInfo("past_key_values.0.key", np.dtype(np.float32), ("n", 2, "p", 4))


def _batch(**more: np.ndarray) -> dict[str, np.ndarray]:
    ids = np.array([[1, 2, 3, 0, 0], [0, 0, 4, 5, 6], [7, 8, 9, 1, 2]])
    mask = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    return {"input_ids": ids, "attention_mask": mask, **more}


def test_sequences_come_one_by_one_without_their_padding() -> None:
    data = open_data([_batch()], [_IDS, _MASK], padding=False)

    feeds = list(data)

    assert [feed["input_ids"].tolist() for feed in feeds] == [
        [[1, 2, 3]],
        [[4, 5, 6]],
        [[7, 8, 9, 1, 2]],
    ]
    assert all((feed["attention_mask"] == 1).all() for feed in feeds)
    assert len(data) == 3
    assert [f["input_ids"].shape for f in data.select([0, 2])] == [(1, 3), (1, 5)]


def test_a_limit_counts_sequences() -> None:
    assert len(open_data([_batch(), _batch()], [_IDS, _MASK], padding=False, limit=4)) == 4


def test_batches_stay_where_padding_is_kept_or_there_is_none() -> None:
    full = _batch(attention_mask=np.ones((3, 5), np.int64))

    assert [len(f["input_ids"]) for f in open_data([_batch()], [_IDS, _MASK])] == [3]
    assert [len(f["input_ids"]) for f in open_data([full], [_IDS, _MASK], padding=False)] == [3]


def test_empty_caches_are_cut_along_and_full_ones_leave_the_batch_alone() -> None:
    empty, full = (np.zeros((3, 2, size, 4), np.float32) for size in (0, 7))
    past = _CACHE.name

    parts = list(unpadded(_batch(**{past: empty}), _MASK.name))

    assert [part[past].shape for part in parts] == [(1, 2, 0, 4)] * 3
    assert len(list(unpadded(_batch(**{past: full}), _MASK.name))) == 1


def test_fixed_sizes_need_their_padding() -> None:
    assert find_mask([_IDS, _MASK, _CACHE]) == "attention_mask"
    assert find_mask([_IDS, InputInfo("attention_mask", _INT64, ("n", 128))]) == ""
    assert find_mask([_IDS]) == ""


def _tagger() -> onnx.ModelProto:
    """Return a network in which the padding token has an embedding a hundred times the others'."""
    random = np.random.default_rng(0)
    table = random.normal(size=(16, 8)).astype(np.float32)
    table[0] *= 100
    weights = {"table": table, "w": random.normal(size=(8, 8)).astype(np.float32)}
    sizes = ["n", "t"]
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["e"], "e"),
            helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["kept", "last"], ["column"]),
            helper.make_node("MatMul", ["e", "w"], ["m"], "m"),
            helper.make_node("Mul", ["m", "column"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info(n, TensorProto.INT64, sizes)
            for n in (_IDS.name, _MASK.name)
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*sizes, 8])],
        [
            *(numpy_helper.from_array(a, n) for n, a in weights.items()),
            numpy_helper.from_array(np.array([2]), "last"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _sentences() -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return sequences one by one, and the same in one padded batch."""
    random = np.random.default_rng(1)
    alone = [
        {"input_ids": random.integers(1, 16, (1, n)), "attention_mask": np.ones((1, n), np.int64)}
        for n in (3, 5, 8, 4)
    ]
    together = {
        name: np.concatenate([np.pad(f[name], ((0, 0), (0, 8 - f[name].shape[1]))) for f in alone])
        for name in alone[0]
    }
    return alone, together


@pytest.mark.parametrize("preset", ["A8W8", "U8S8_PERCHANNEL"])
def test_padding_decides_no_range(preset: str) -> None:
    alone, together = _sentences()

    one_by_one, padded = (
        lowbit.quantize(_tagger(), data=data, preset=preset) for data in (alone, [together])
    )

    assert padded.state.params.tensors["e"].scale == one_by_one.state.params.tensors["e"].scale


def test_padding_decides_no_figure_of_a_comparison() -> None:
    alone, together = _sentences()
    quantized = lowbit.quantize(_tagger(), data=alone, preset="A8W8").model

    one_by_one, padded = (
        lowbit.compare(_tagger(), quantized, data) for data in (alone, [together])
    )

    # Clipped at the padding, whose values no range was made for.
    assert padded.layers == one_by_one.layers
    assert padded.sqnr_db == one_by_one.sqnr_db
