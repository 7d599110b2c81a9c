"""A graph of many nodes with switches gives part by part what it gives as a whole."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import quantized
from helpers.transformer_models import tokens, transformer

from lowbit.config.presets import find_preset
from lowbit.evaluate.runner import ReferenceSample, Run, reference_samples
from lowbit.graph import parts
from lowbit.search import switched_model, switched_parts
from lowbit.search.switched_model import open_switched
from lowbit.search.switched_parts import Switching
from lowbit.state import Quantized

_BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,4] x, float[1,4] z) => (float[1,8] y, float[1,4] s)
    <float[4,4] a = {A}, float[4,4] b = {B}> {
        p = MatMul(x, a)
        q = Relu(p)
        r = MatMul(q, b)
        s = Add(r, z)
        t = Sigmoid(q)
        y = Concat <axis = 1> (s, t)
    }"""


def _branches() -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Return a model with two inputs and an output that is read inside, and its samples."""
    rng = np.random.default_rng(2)
    text = _BRANCHES
    for name in "AB":
        numbers = ", ".join(map(str, rng.normal(size=16)))
        text = text.replace(f"{{{name}}}", f"{{{numbers}}}")
    feeds = [{name: rng.normal(size=(1, 4)).astype(np.float32) for name in "xz"} for _ in range(6)]
    return onnx.parser.parse_model(text), feeds


_KINDS = {
    "chain": lambda: (chain(8), smooth(6)),
    "branches": _branches,
    "transformer": lambda: (transformer(), tokens(6)),
}


@pytest.fixture(scope="module", params=list(_KINDS))
def found(request) -> tuple[Quantized, list[ReferenceSample]]:
    model, feeds = _KINDS[request.param]()
    state = quantized(model, find_preset("A8W8"), feeds)
    return state, list(reference_samples(Run.float_model(state.loaded), feeds[:3]))


def _choices(state: Quantized) -> list[Switching]:
    """Return choices that have a front, an end or single tensors in float, and one with other scales."""
    names = [row.name for row in state.plan.tensors]
    activations = [row.name for row in state.plan.activations() if row.spec.is_integer]
    half, one = len(names) // 2, activations[len(activations) // 2]
    return [
        Switching(),
        Switching(frozenset(names)),
        Switching(frozenset(names[:half])),
        Switching(frozenset(names[half:])),
        Switching(frozenset(names[::3])),
        Switching(frozenset(names) - {one}, ((one, 0.5),)),
    ]


@pytest.fixture
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switched_model, "MANY_NODES", 2)
    monkeypatch.setattr(switched_model, "is_large", lambda _: True)
    monkeypatch.setattr(switched_parts, "_PART_NODES", 2)


def _outputs(state: Quantized) -> list[str]:
    return [str(value.name) for value in state.emitted.model.graph.outputs]


def test_parts_give_what_the_whole_gives(found, request) -> None:
    state, samples = found
    names, choices = _outputs(state), _choices(state)
    with open_switched(state, names, samples) as whole:
        want = list(whole.run_all(choices, range(3)))
    request.getfixturevalue("_in_parts")
    with open_switched(state, names, samples) as cut:
        assert isinstance(cut, switched_parts.SwitchedParts)
        got = list(cut.run_all(choices, range(3)))

    for ours, theirs in zip(got, want, strict=True):
        for (a, given), (b, exact) in zip(ours, theirs, strict=True):
            assert a is b
            for name in names:
                np.testing.assert_allclose(given[name], exact[name], rtol=1e-5, atol=1e-6)
    different = {got[i][0][1][names[0]].tobytes() for i in range(len(choices))}
    assert len(different) >= 4  # the choices do make a difference


@pytest.mark.usefixtures("_in_parts")
@pytest.mark.parametrize("choices", [1, 5])
def test_a_pass_opens_a_part_for_each_of_its_kinds(found, monkeypatch, choices: int) -> None:
    """However many choices there are: what is in float in all of them but one is opened twice."""
    state, samples = found
    opened = []
    make = switched_parts.Session

    def counted(*args, **options):
        opened.append(args)
        return make(*args, **options)

    monkeypatch.setattr(switched_parts, "Session", counted)
    names = [row.name for row in state.plan.tensors]
    ends = np.linspace(0, len(names), choices + 1).astype(int)
    asked = [
        Switching(frozenset(names) - frozenset(names[a:b])) for a, b in itertools.pairwise(ends)
    ]
    with open_switched(state, _outputs(state), samples) as cut:
        list(cut.run_all(asked, range(3)))

    # In float, as it is, and for each place where one choice ends two kinds more.
    assert len(opened) <= 2 * len(cut._parts) + 4 * choices


def test_a_model_of_few_nodes_or_with_functions_is_opened_as_a_whole(found, monkeypatch) -> None:
    state, samples = found
    monkeypatch.setattr(parts, "LARGE_NODES", 2)
    with open_switched(state, _outputs(state), samples) as model:
        assert isinstance(model, switched_model.SwitchedModel)
