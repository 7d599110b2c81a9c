import numpy as np
import onnx_ir as ir
import pytest
from small_models import small_cnn, small_feeds

from lowbit.errors import ModelError
from lowbit.evaluate.compare_models import compare_models, of_layers, of_outputs
from lowbit.graph import io


def test_a_model_equals_itself() -> None:
    model = io.load(small_cnn())

    (outputs,) = compare_models([of_outputs(model, model)], model, small_feeds(3), threads=2)

    # One side runs optimized, so equal means equal to rounding.
    assert outputs["logits"].sqnr_db > 100


def test_noise_of_a_known_size_is_measured() -> None:
    model = io.load(small_cnn())
    other = model.clone()
    bias = other.graph.initializers["b3"]
    bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32(0.5), name="b3")

    (outputs,) = compare_models([of_outputs(model, other)], other, small_feeds(4), threads=2)

    assert outputs["logits"].max_error == pytest.approx(0.5, rel=1e-4)
    assert outputs["logits"].noise == pytest.approx(4 * 5 * 0.25, rel=1e-4)


def test_a_model_of_other_outputs_is_refused() -> None:
    model = io.load(small_cnn())
    other = model.clone()
    other.graph.outputs[0].name = "scores"

    with pytest.raises(ModelError, match="no output 'logits'"):
        of_outputs(model, other)


def test_layers_are_those_dequantized_in_the_other_model() -> None:
    model = io.load(small_cnn())

    assert of_layers(model, model, ["r1", "a1"]).pairs == {}


def test_many_samples_are_taken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = io.load(small_cnn())
    other = model.clone()
    bias = other.graph.initializers["b3"]
    bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32(0.5), name="b3")
    reference = of_outputs(model, other)
    at_once = compare_models([reference], other, small_feeds(7), threads=2)
    monkeypatch.setattr("lowbit.evaluate.compare_models._MEMORY_FOR_VALUES", 1)

    one_by_one = compare_models([reference], other, small_feeds(7), threads=1)

    assert one_by_one == at_once
