"""The configuration of a run is chosen from what is given, and knows its inputs and its plan."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from lowbit.api.configuration import choose_config, with_inputs
from lowbit.config import DEFAULT_PRESET
from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.config.transforms import Rescaling
from lowbit.errors import ConfigError
from lowbit.planning.plan import Plan


def test_a_preset_or_a_configuration_or_the_default() -> None:
    own = find_preset("U8S8")

    assert choose_config(None, None) == find_preset(DEFAULT_PRESET)
    assert choose_config("XINT8", None) == find_preset("XINT8")
    assert choose_config(None, own) is own
    with pytest.raises(ConfigError, match="not both"):
        choose_config("XINT8", own)


def test_a_plan_brings_the_factors_that_its_ranges_are_of() -> None:
    factors = Rescaling(factors={"r": 1.25}, ranges={"r": (0.0, 4.0)})
    plan = Plan(preset="XINT8", target="ryzen-ai-cnn", rescaling=factors, tensors=())

    assert choose_config("XINT8", None, plan).rescaling == factors
    # A configuration of another run may have factors of its own, which the plan's ranges know nothing of.
    other = msgspec.structs.replace(find_preset("XINT8"), rescaling=factors)
    without = msgspec.structs.replace(plan, rescaling=None)
    assert choose_config(None, other, without).rescaling is None


def test_inputs_are_added_to_those_of_the_configuration() -> None:
    config = QuantConfig(activation=None, weight=None, input_shapes={"x": (1, 3)})

    found = with_inputs(config, {"sr": np.int64(16000)}, {"y": [1, "N"]})

    assert found.fix_inputs == {"sr": 16000}
    assert found.input_shapes == {"x": (1, 3), "y": (1, "N")}
