"""Refinements as values: told apart in files, with bounds that are named."""

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaQuant, AdaRound, Gptq, LayerReconstruction
from lowbit.errors import ConfigError


@pytest.mark.parametrize(
    "refinement",
    [
        LayerReconstruction(),
        Gptq(act_order=True),
        AdaRound(beta_range=(9.0, 3.0)),
        AdaQuant(update_bias=True),
        None,
    ],
)
def test_a_configuration_with_refinement_survives_json(refinement):
    config = msgspec.structs.replace(find_preset("A8W8"), refinement=refinement)
    assert decode_json(msgspec.json.encode(config), QuantConfig) == config


def test_defaults_are_amd_quarks():
    assert (AdaRound().num_iterations, AdaRound().learning_rate) == (1000, 0.1)
    assert (AdaQuant().num_iterations, AdaQuant().learning_rate) == (3000, 1e-5)
    assert AdaRound().fixed_seed == 1705472343


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (LayerReconstruction, "positions", 0),
        (LayerReconstruction, "ridge", -0.1),
        (LayerReconstruction, "held_out", 0.9),
        (AdaRound, "batch_size", 0),
        (AdaRound, "warm_start", 1.5),
        (AdaRound, "beta_range", (0.0, 2.0)),
        (AdaRound, "learning_rate", 0.0),
        (AdaQuant, "drop_ratio", 2.0),
        (AdaQuant, "num_iterations", 0),
        (AdaQuant, "output_index", -1),
        (Gptq, "block_size", 0),
        (Gptq, "perc_damp", 0),
        (Gptq, "data_size", 0),
        (Gptq, "positions", 0),
        (Gptq, "held_out", 0.9),
    ],
)
def test_a_value_that_cannot_be_is_named(kind, field, value):
    name = kind.__struct_config__.tag
    with pytest.raises(ConfigError) as raised:
        kind(**{field: value})
    shown = f"{value:g}" if isinstance(value, float) else value
    assert f"{name}.{field} is {shown}; " in str(raised.value)


@pytest.mark.parametrize("held_out", [0.0, 0.5])
@pytest.mark.parametrize("kind", [LayerReconstruction, Gptq, AdaRound, AdaQuant])
def test_both_ends_of_a_bound_are_inside(kind, held_out):
    assert kind(held_out=held_out, data_size=1).held_out == held_out


def test_only_one_method_at_a_time():
    text = b'{"activation": null, "weight": null, "refinement": [{"type": "adaround"}]}'
    with pytest.raises(msgspec.ValidationError, match=r"an object with a `type`.*`\$.refinement`"):
        decode_json(text, QuantConfig)


def test_the_packages_own_refinements_have_no_algorithm_of_their_own():
    assert [kind().algorithm() for kind in (LayerReconstruction, Gptq, AdaRound, AdaQuant)] == [
        None
    ] * 4
