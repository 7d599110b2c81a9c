from __future__ import annotations

import importlib.metadata
from pathlib import Path

import msgspec
import pytest

from lowbit.errors import ConfigError
from lowbit.ops.traits import OPERATORS
from lowbit.targets import find_target
from lowbit.targets.builtin import BUILTIN
from lowbit.transforms.rewrites import REWRITES


@pytest.mark.parametrize("name", BUILTIN)
def test_targets_speak_of_operators_and_rewrites_that_exist(name: str) -> None:
    target = BUILTIN[name]

    assert target.name == name
    assert target.description
    mentioned = {
        *target.operators,
        *target.shares,
        *(op for alignment in target.align for op in alignment.operators),
        *(op for pair in target.fuse for op in (*pair.producers, *pair.consumers)),
    }
    assert mentioned <= set(OPERATORS)
    assert {*target.transforms, *target.arithmetic} <= set(REWRITES)
    assert len(set(target.operators)) == len(target.operators)


@pytest.mark.parametrize("name", BUILTIN)
def test_operators_that_share_are_not_aligned_as_well(name: str) -> None:
    target = BUILTIN[name]

    aligned = {op for alignment in target.align for op in alignment.operators}
    assert not aligned & set(target.shares)


def test_limits_come_with_powers_of_two() -> None:
    for target in BUILTIN.values():
        assert target.limits is None or target.power_of_two


def test_a_target_is_found_by_its_name_or_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    mine = msgspec.structs.replace(BUILTIN["ryzen-ai"], name="mine")
    path.write_bytes(msgspec.json.encode(mine))

    assert find_target("ryzen-ai") is BUILTIN["ryzen-ai"]
    assert find_target(str(path)) == mine


def _install(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    entry = importlib.metadata.EntryPoint(name, value, "lowbit.targets")
    entries = importlib.metadata.EntryPoints([entry])
    monkeypatch.setattr("importlib.metadata.entry_points", entries.select)


def test_other_packages_install_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "toy", "lowbit.targets.builtin:RYZEN_AI")

    assert find_target("toy") is BUILTIN["ryzen-ai"]


def test_a_built_in_name_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "onnxruntime", "lowbit.targets.builtin:RYZEN_AI")

    assert find_target("onnxruntime") is BUILTIN["onnxruntime"]


def test_unknown_names_get_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "toybox", "lowbit.targets.builtin:RYZEN_AI")

    with pytest.raises(
        ConfigError,
        match=r"unknown target 'onnxruntim'; did you mean 'onnxruntime'.*\? \(built in: .*vint8.*; "
        r"installed: toybox; or give the path of a \.json file\)",
    ):
        find_target("onnxruntim")
    with pytest.raises(ConfigError, match="did you mean 'toybox'"):
        find_target("toybx")
