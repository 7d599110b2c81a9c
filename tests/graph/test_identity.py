"""Whatever changes what a model computes changes its bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
from helpers.chain_models import chain
from onnx import helper, numpy_helper

from lowbit.graph import io
from lowbit.graph.identity import hash_model


def _digest(*messages: onnx.ModelProto) -> str:
    digest = hashlib.sha256()
    hash_model(digest.update, *(io.load(message) for message in messages))
    return digest.hexdigest()


def test_the_same_model_is_the_same() -> None:
    assert _digest(chain(2)) == _digest(chain(2))


def test_any_change_makes_another_model() -> None:
    changed = []
    for index in range(4):
        model = chain(2)
        array = numpy_helper.to_array(model.graph.initializer[index]).copy()
        array.flat[-1] = np.nextafter(array.flat[-1], np.float32(9))
        model.graph.initializer[index].CopyFrom(
            numpy_helper.from_array(array, model.graph.initializer[index].name)
        )
        changed.append(model)
    attribute, operator, opset, size = (chain(2) for _ in range(4))
    attribute.graph.node[0].attribute.append(helper.make_attribute("group", 1))
    operator.graph.node[1].op_type = "Sigmoid"
    opset.opset_import[0].version = 18
    size.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 8
    changed += [attribute, operator, opset, size]

    assert len({_digest(model) for model in (chain(2), *changed)}) == 9


def test_several_models_are_told_apart() -> None:
    assert len({_digest(chain(2)), _digest(chain(2), chain(2)), _digest(chain(2), chain(3))}) == 3
