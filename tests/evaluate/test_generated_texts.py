"""A language model writes its own samples; a model that predicts no next token writes none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import lowbit
from lowbit.evaluate.generated_texts import generate_texts
from lowbit.graph import io

_WORDS = 40
_RANDOM = np.random.default_rng(0)
_NEXT = _RANDOM.permutation(_WORDS)
_INPUTS = "int64[N,L] input_ids, int64[N,L] attention_mask"
_PLAIN = "e = Gather(table, input_ids)\n logits = MatMul(e, w)"
_LATER = """e = Gather(table, input_ids)
    m = ReduceMean<axes=[1]>(e)
    s = Add(e, m)
    logits = MatMul(s, w)"""


def _bigrams(body: str = _PLAIN, inputs: str = _INPUTS, classes: int = _WORDS) -> onnx.ModelProto:
    """Return a model by which each word is followed by ``_NEXT`` of it, as good as always."""
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    g ({inputs}) => (float[N,L,{classes}] logits)
    <float[{_WORDS},64] table, float[64,{classes}] w> {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    table = np.linalg.qr(_RANDOM.normal(size=(64, 64)))[0][:_WORDS].astype(np.float32)
    follows = np.zeros((_WORDS, classes), np.float32)
    follows[np.arange(_WORDS), _NEXT % classes] = 40
    constants = {"table": table, "w": table.T @ follows}
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return model


def test_texts_are_drawn_from_the_model_itself() -> None:
    data = generate_texts(io.load(_bigrams()))

    assert data is not None
    texts = [feed["input_ids"][0] for feed in data]
    assert len({int(text[0]) for text in texts}) > len(texts) // 3
    for text in texts:
        np.testing.assert_array_equal(text[1:], _NEXT[text[:-1]])
    assert all((feed["attention_mask"] == 1).all() for feed in data)
    assert data.description == "24 texts that the model wrote itself"


@pytest.mark.parametrize(
    "model",
    [
        _bigrams(_LATER),
        _bigrams(inputs="int64[N,8] input_ids"),
        _bigrams(classes=7),
        _bigrams(inputs=f"{_INPUTS}, float[N,3] picture"),
    ],
    ids=["logits depend on later tokens", "fixed length", "a classifier of tokens", "more inputs"],
)
def test_other_models_write_nothing(model: onnx.ModelProto) -> None:
    assert generate_texts(io.load(model)) is None


def test_w4_without_data_is_reconstructed_on_generated_texts() -> None:
    result = lowbit.quantize(_bigrams(), preset="W4")

    assert result.report.data == "24 texts that the model wrote itself"
    assert any("refined 1 of 1 layers" in note for note in result.report.notes)


def test_without_refinement_nothing_is_written() -> None:
    assert lowbit.quantize(_bigrams(), preset="W8").report.data == "none"
