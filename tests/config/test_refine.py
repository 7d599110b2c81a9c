import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaQuant, AdaRound, LayerReconstruction
from lowbit.errors import ConfigError


@pytest.mark.parametrize(
    "refine", [LayerReconstruction(), AdaRound(), AdaQuant(update_bias=True), None]
)
def test_a_configuration_with_refinement_survives_json(refine):
    config = msgspec.structs.replace(find_preset("A8W8"), refinement=refine)
    assert msgspec.json.decode(msgspec.json.encode(config), type=QuantConfig) == config


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
        (AdaQuant, "target_op_type", ("Relu",)),
    ],
)
def test_a_value_that_cannot_be_is_named(kind, field, value):
    with pytest.raises(ConfigError, match=field):
        kind(**{field: value})


def test_only_one_method_at_a_time():
    text = b'{"activation": null, "weight": null, "refinement": [{"type": "adaround"}]}'
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=QuantConfig)
