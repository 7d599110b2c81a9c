"""Damaged and hostile files: whatever is in them, only errors of our own come out.

``LOWBIT_FUZZ=100`` tries a hundred times as many; a failure names its seed.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from helpers.mutations import changed, damaged
from helpers.small_models import small_cnn, small_feeds
from helpers.transformer_models import transformer

import lowbit
from lowbit.calibrate.statistics import load_stats, save_stats
from lowbit.config.files import read_config
from lowbit.config.presets import find_preset
from lowbit.errors import LowbitError
from lowbit.planning.plan import load_plan

TIMES = int(os.environ.get("LOWBIT_FUZZ", "1"))
PLAIN = msgspec.structs.replace(find_preset("XINT8"), refinement=None, keep_only_if_better=False)

pytestmark = pytest.mark.filterwarnings("ignore")


def _attempts(count: int, attempt: Callable[[random.Random], Any]) -> int:
    """Return how often nothing was wrong; let nothing else but our errors pass."""
    return sum(_is_fine(seed, attempt) for seed in range(count * TIMES))


def _is_fine(seed: int, attempt: Callable[[random.Random], Any]) -> bool:
    try:
        attempt(random.Random(seed))  # noqa: S311  # the same again for the same seed
    except LowbitError:
        return False
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return True


def _edited(document: Any, rng: random.Random) -> Any:
    """Return JSON with a value or two replaced by what does not belong there."""
    found = json.loads(json.dumps(document))

    def places(value: Any) -> Iterator[tuple[Any, Any]]:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            if isinstance(value[key], (dict, list)):
                yield from places(value[key])

    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(list(places(found)))
        odd = [None, -1, 0, 5, 10**30, 1e300, -0.5, "x", "", "int16", "uint4", [], {}, ["a"], True]
        holder[key] = rng.choice(odd)
    return found


@pytest.fixture(scope="module")
def result():
    return lowbit.quantize(
        small_cnn(), data=small_feeds(2), config=PLAIN, keep_histograms=True, verify=1
    )


@pytest.mark.parametrize("make", [small_cnn, transformer])
def test_bytes_of_models(make) -> None:
    whole = make().SerializeToString()

    _attempts(80, lambda rng: lowbit.plan(damaged(whole, rng), preset="XINT8"))


@pytest.mark.parametrize("make", [small_cnn, transformer])
def test_fields_of_models(make) -> None:
    whole = make()

    _attempts(100, lambda rng: lowbit.plan(changed(whole, rng), preset="XINT8"))


def test_models_that_are_quantized() -> None:
    whole = small_cnn()

    def attempt(rng: random.Random) -> None:
        lowbit.quantize(changed(whole, rng), data=small_feeds(1), config=PLAIN)

    _attempts(60, attempt)


@pytest.mark.parametrize("how", ["bytes", "fields"])
def test_plans(how, result, tmp_path) -> None:
    path = tmp_path / "plan.json"
    whole = msgspec.json.encode(result.plan)

    def attempt(rng: random.Random) -> None:
        edited = json.dumps(_edited(json.loads(whole), rng)).encode()
        path.write_bytes(damaged(whole, rng) if how == "bytes" else edited)
        plan = load_plan(path)
        lowbit.quantize(
            small_cnn(), data=small_feeds(1), config=PLAIN, plan=plan, stats=result.stats
        )

    _attempts(150, attempt)


def test_statistics(result, tmp_path) -> None:
    whole, path = tmp_path / "whole.npz", tmp_path / "stats.npz"
    save_stats(result.stats, whole)
    arrays = dict(np.load(whole))
    header = json.loads(str(arrays["header"]))

    def attempt(rng: random.Random) -> None:
        match rng.randrange(3):
            case 0:
                path.write_bytes(damaged(whole.read_bytes(), rng))
            case 1:
                np.savez(path, **(arrays | {"header": np.array(json.dumps(_edited(header, rng)))}))
            case _:
                key = rng.choice([name for name in arrays if name != "header"])
                old = arrays[key]
                odd = (old[:1], -old, old.reshape(1, -1), old + 1e9, np.array("x"), old * 0.5)
                np.savez(path, **(arrays | {key: rng.choice(odd)}))
        stats = load_stats(path)
        lowbit.quantize(small_cnn(), data=small_feeds(1), config=PLAIN, stats=stats)

    _attempts(150, attempt)


@pytest.mark.parametrize("how", ["bytes", "fields"])
def test_configurations(how, tmp_path) -> None:
    path = tmp_path / "config.json"

    def attempt(rng: random.Random) -> None:
        whole = msgspec.json.encode(find_preset(rng.choice(("XINT8", "A8W8", "BF16"))))
        edited = json.dumps(_edited(json.loads(whole), rng)).encode()
        path.write_bytes(damaged(whole, rng) if how == "bytes" else edited)
        lowbit.plan(small_cnn(), config=read_config(path))

    _attempts(200, attempt)


def test_sound_files_pass() -> None:
    """The attempts can succeed: it is the damage that is refused."""
    assert onnx.ModelProto.FromString(small_cnn().SerializeToString()) == small_cnn()
    assert _attempts(2, lambda _: lowbit.plan(small_cnn(), preset="XINT8")) == 2 * TIMES
