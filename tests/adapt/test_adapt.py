from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.errors import ConfigError
from lowbit.targets.builtin import BUILTIN
from lowbit.transforms.rewrites import REWRITES, adapt

EVERYTHING = """g (float[1,4,26,26] x) => (float[1,2,1,1] a, float[1,2,1,1] y, float[1,4,1,1] z) {
  [act] l = LeakyRelu<alpha=0.1>(x)
  [bn] b = BatchNormalization(l, gamma, beta, mean, var)
  [clip] c = Clip(b, zero)
  [mean] p = ReduceMean<axes=[2,3]>(c)
  [gate] s = Sigmoid(p)
  [split] a, d = Split<axis=1>(s)
  [other] y = HardSigmoid<alpha=0.16666667, beta=0.5>(d)
  [pool] z = GlobalAveragePool(l)
}"""


@pytest.fixture
def everything(normal, floats) -> ir.Model:
    weights = {name: floats(4) for name in ("gamma", "beta", "mean")}
    weights["var"] = np.abs(floats(4)) + 0.5
    return normal(EVERYTHING, {**weights, "zero": np.array(0, np.float32)})


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_all_rewrites_together_give_a_sound_model(everything, run, floats, assert_sound) -> None:
    after = adapt(everything, list(REWRITES))

    assert_sound(everything, after)
    assert not {"Sigmoid", "Split", "ReduceMean", "BatchNormalization", "Clip"} & set(ops(after))
    outputs = run(after, {"x": floats(1, 4, 26, 26)})
    expected = run(everything, {"x": floats(1, 4, 26, 26)})
    assert {name: data.shape for name, data in outputs.items()} == {
        name: data.shape for name, data in expected.items()
    }


def test_the_given_model_is_left_as_it_was(everything) -> None:
    before = ir.to_proto(everything).SerializeToString(deterministic=True)

    adapt(everything, list(REWRITES))

    assert ir.to_proto(everything).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("sigmoid_to_hardsigmoid", "Sigmoid"),
        ("split_to_slice", "Split"),
        ("reduce_mean_to_pool", "ReduceMean"),
        ("batchnorm_to_conv", "BatchNormalization"),
        ("clip_to_relu", "Clip"),
    ],
)
def test_a_rewrite_can_be_left_out(everything, name: str, op: str) -> None:
    assert op in ops(adapt(everything, list(REWRITES), skip_rewrites=[name]))


def test_no_rewrites_change_nothing(everything) -> None:
    assert ops(adapt(everything, [])) == ops(everything)


def test_leaving_out_what_was_not_asked_for_is_fine(everything) -> None:
    assert "Sigmoid" in ops(adapt(everything, ["split_to_slice"], skip_rewrites=["clip_to_relu"]))


def test_nodes_to_keep_stay_as_they_are(everything) -> None:
    after = adapt(everything, list(REWRITES), keep={"gate", "clip"})

    assert {"Sigmoid", "Clip"} <= set(ops(after))
    assert "Split" not in ops(after)


@pytest.mark.parametrize("where", ["names", "without"])
def test_an_unknown_rewrite_names_the_nearest(everything, where: str) -> None:
    given = {"names": ["split_to_slice"], "skip_rewrites": [], where: ["split_to_slices"]}

    with pytest.raises(
        ConfigError, match="unknown rewrite 'split_to_slices'; did you mean 'split_to_slice'"
    ):
        adapt(everything, **given)


def test_every_rewrite_a_target_names_exists() -> None:
    for target in BUILTIN.values():
        assert {*target.transforms, *target.arithmetic} <= set(REWRITES)
