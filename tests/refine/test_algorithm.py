"""Kinds of refinement: one of one's own says how the loop goes and what solves a layer."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from helpers.chain_models import chain, smooth

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.presets import find_preset
from lowbit.config.refinement import Refinement
from lowbit.config.specs import FloatSpec
from lowbit.errors import ConfigError
from lowbit.numerics.formats import FloatFormat
from lowbit.refine.algorithm import Algorithm, LoopSettings
from lowbit.refine.layers import LayerResult, float_bias, float_weights
from lowbit.refine.reconstruct import Grid, stored_integers


class Upwards(Refinement, msgspec.Struct, frozen=True, kw_only=True, tag="test-upwards"):
    """Rounds every weight up: no good, but its own."""

    data_size: int | None = None
    infer_device: str = "cpu"
    refused: bool = False
    op_types: tuple[str, ...] = ()

    def algorithm(self) -> Algorithm:
        return Algorithm(settings=_settings, solver=_solver, check=_check)


def _settings(config: Upwards) -> LoopSettings:
    return LoopSettings(positions=4, op_types=config.op_types)


def _solver(state, config, stop):
    assert isinstance(config, Upwards)
    assert not stop.is_set()

    def solve(layer, samples):
        assert all(sample.patches.shape[2] == 4 for sample in samples)
        grid = Grid.of(layer, float_weights(state, layer))
        stored = stored_integers(layer, grid.high)
        return LayerResult(layer.node, stored, float_bias(state, layer), 2.0, 1.0, kept=True)

    return solve


def _check(config: Upwards) -> None:
    if config.refused:
        raise ConfigError("upwards is refused; take another")


def _config(**fields) -> QuantConfig:
    return msgspec.structs.replace(
        find_preset("A8W8"),
        equalization=None,
        bias_correction=False,
        keep_only_if_better=False,
        refinement=Upwards(**fields),
    )


def test_a_kind_of_ones_own_refines_a_model() -> None:
    result = lowbit.quantize(chain(2), data=smooth(4), config=_config())

    for name in ("w0", "w1"):
        values = result.state.adapted.graph.initializers[name].const_value.numpy()
        exact = values / result.params.tensors[name].scale
        stored = result.state.weights.tensors[name]()
        np.testing.assert_array_equal(stored, np.clip(np.ceil(exact), -127, 127))
    assert any(
        note.startswith("refined 2 of 2 layers: their error on held-out samples fell to 50%")
        for note in result.report.notes
    )


def test_its_settings_say_which_operators() -> None:
    result = lowbit.quantize(chain(2), data=smooth(4), config=_config(op_types=("Gemm",)))

    assert any(note == "refined 0 of 0 layers" for note in result.report.notes)


def test_its_check_is_asked_before_any_work() -> None:
    def never():
        raise AssertionError("the data was read")
        yield

    with pytest.raises(ConfigError, match="upwards is refused; take another"):
        lowbit.quantize(chain(2), data=never(), config=_config(refused=True))


def test_unless_it_says_otherwise_it_needs_integers_but_no_data() -> None:
    floats = FloatSpec(format=FloatFormat.BFLOAT16)
    config = msgspec.structs.replace(_config(), weight=floats, target="ryzen-ai-float")

    with pytest.raises(
        ConfigError, match=r"Upwards chooses which integer.*bfloat16; take AdaQuant"
    ):
        lowbit.quantize(chain(2), data=smooth(2), config=config)
    result = lowbit.quantize(chain(2), data="random", config=_config())
    assert any(note.startswith("refined 2 of 2") for note in result.report.notes)


def test_it_survives_a_file() -> None:
    config = _config(data_size=3)

    assert decode_json(msgspec.json.encode(config), QuantConfig) == config


def test_settings_are_values() -> None:
    settings = LoopSettings(positions=7)

    assert settings == LoopSettings(positions=7, op_types=(), batch_size=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.positions = 8  # type: ignore[misc]
