"""Layer targets: the float model's outputs, at positions that are spread evenly or drawn."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.graph import sharing
from lowbit.graph.session import session
from lowbit.graph.sharing import ONE_BY_ONE, sharing_of
from lowbit.graph.store import open_store
from lowbit.refine.algorithm import LoopSettings
from lowbit.refine.layers import find_layers
from lowbit.refine.targets import LayerTargets
from lowbit.state import Quantized

_FEEDS = smooth(2)


@pytest.fixture(scope="module")
def state() -> Quantized:
    return quantized(chain(2), find_preset("A8W8"), smooth(5))


def _targets(state: Quantized, settings: LoopSettings, draw=None) -> list[list]:
    """Return the targets of each sample, for each layer."""
    layers, _ = find_layers(state, ())
    found = []
    with open_store() as store:
        targets = LayerTargets(
            state.calibrated_model,
            layers,
            store,
            settings,
            samples=len(_FEEDS),
            device="cpu",
            sharing=sharing_of(None),
            draw=draw,
        )
        for step in range(len(layers)):
            targets.begin(step)
            feeds = _FEEDS if step == 0 else [None] * len(_FEEDS)
            found.append([targets.of(step, number, feed) for number, feed in enumerate(feeds)])
            targets.end()
    return found


def test_values_are_the_float_outputs_at_the_positions_that_were_drawn(state: Quantized) -> None:
    layers, _ = find_layers(state, ())
    wanted: dict[str, int] = {}

    def draw(counts: Mapping[str, int]):
        wanted.update(counts)
        # Of one layer, one position twice.
        return {(layers[1].node, number): np.array([3, 3, 8]) for number in range(len(_FEEDS))}

    found = _targets(state, LoopSettings(positions=4, moments=True), draw)

    assert wanted.keys() == {layer.node for layer in layers}
    name = layers[1].output
    with session(state.calibrated_model, [name]) as running:
        for feed, target in zip(_FEEDS, found[1], strict=True):
            (y,) = running.run([name], feed)
            expected = y[0].reshape(y.shape[1], -1)[:, [3, 3, 8]]
            np.testing.assert_allclose(target.targets[0], expected, rtol=1e-4, atol=1e-4)
    assert all(len(set(target.at.tolist())) == wanted[layers[0].node] for target in found[0])


def test_nothing_is_drawn_for_those_that_look_at_whole_samples(state: Quantized) -> None:
    def draw(_: Mapping[str, int]):
        raise AssertionError

    assert len(_targets(state, LoopSettings(positions=4), draw)) == 2


def test_large_samples_take_turns_in_the_float_model(
    state: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "cpu_count", lambda: 2)
    layers, _ = find_layers(state, ())
    with open_store() as store:
        settings = LoopSettings(positions=4, moments=True)
        targets = LayerTargets(
            state.calibrated_model,
            layers,
            store,
            settings,
            samples=len(_FEEDS),
            device="cpu",
            sharing=ONE_BY_ONE,
        )
        run, left = targets._run.run, []

        def watched(*args):
            # Whoever came now would have to wait.
            left.append(targets._turns.acquire(blocking=False))
            return run(*args)

        monkeypatch.setattr(targets._run, "run", watched)
        targets.begin(0)
        for number, feed in enumerate(_FEEDS):
            targets.of(0, number, feed)
        targets.end()

    assert left == [False, False]
    assert targets._turns.acquire(blocking=False)
