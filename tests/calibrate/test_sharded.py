"""Calibration in shards: the same bits for any workers, shards and engine; nothing is run twice."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import joblib
import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from helpers import tasks

import lowbit
from lowbit import parallel
from lowbit.calibrate import sharded
from lowbit.calibrate.statistics import Stats
from lowbit.config.presets import find_preset
from lowbit.errors import DataError

_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,3,6,6] x) => (float[1,4,6,6] y)
<float[4,3,1,1] w = {1.0,-2.0,3.0,0.5,0.25,-1.0,0.3,0.7,-0.1,1.5,-0.4,0.9}, float[4] b = {0.5,-0.5,0.1,0.2},
 float[4,4,1,1] v = {1.0,-2.0,3.0,0.5,0.25,-1.0,0.3,0.7,-0.1,1.5,-0.4,0.9,0.6,0.2,-0.8,0.4}>
{
    c = Conv <kernel_shape = [1, 1]> (x, w, b)
    r = Relu (c)
    y = Conv <kernel_shape = [1, 1]> (r, v)
}
"""
_SAMPLES = 70

# One process has the cluster, the executor and what is compared with.
pytestmark = [pytest.mark.xdist_group("workers"), pytest.mark.usefixtures("worker_processes")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model and a folder of samples whose sizes differ much, so that rounded sums would differ."""
    place = tmp_path_factory.mktemp("sharded")
    ir.save(ir.from_onnx_text(_MODEL), place / "model.onnx")
    (place / "data").mkdir()
    rng = np.random.default_rng(0)
    for index in range(_SAMPLES):
        scale = 10.0 ** rng.integers(-6, 6)
        sample = (rng.normal(size=(1, 3, 6, 6)) * scale).astype(np.float32)
        np.save(place / "data" / f"{index:03}.npy", sample)
    return place


def _quantized(folder: Path, preset: str = "XINT8", **options) -> tuple[str, list[object]]:
    """Return a hash of the model, and the statistics in full."""
    # Samples of such different sizes cannot be held by 8 bits.
    options = {"data": folder / "data", "preset": preset, "allow_ruined": True, **options}
    result = lowbit.quantize(folder / "model.onnx", **options)
    content = result.model.SerializeToString(deterministic=True)
    return hashlib.sha256(content).hexdigest(), _flat(result.stats)


def _flat(stats: Stats) -> list[object]:
    rows: list[object] = [stats.samples]
    for name, s in stats.tensors.items():
        counts = None if s.counts is None else s.counts.tobytes()
        means = None if s.channels is None else s.channels.tobytes()
        spread = None if s.variances is None else s.variances.tobytes()
        rows.append((name, s.low, s.high, s.count, s.not_finite, counts, means, spread))
    return rows


@pytest.fixture(scope="module")
def alone(folder: Path) -> tuple[str, list[object]]:
    """What threads of one process give."""
    assert parallel.worker_count() is None
    return _quantized(folder)


@pytest.mark.slow
def test_processes_give_the_same_bits(folder, alone, once, monkeypatch) -> None:
    want = _quantized(folder, **once)
    for workers, size in itertools.product((1, 2, 3, 7), (1, 5, 64)):
        monkeypatch.setattr(sharded, "SHARD_SIZE", size)
        with parallel.engine("loky", workers):
            assert _quantized(folder, **once) == want, (workers, size)
            if (workers, size) in ((3, 5), (7, 1)):
                assert _quantized(folder) == alone, (workers, size)


def test_large_samples_have_the_same_bits(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(3)
    # Maps of 10 x 10 in the end: sums of these depend on the number of threads.
    channels, steps = (3, 16, 16, 16), (5, 6, 1)
    nodes, weights, value = [], [], ir.val("x", ir.DataType.FLOAT, [1, 3, 300, 300])
    inputs = [value]
    for index, (few, many) in enumerate(itertools.pairwise(channels)):
        array = rng.normal(size=(many, few, 3, 3)).astype(np.float32) / (9 * few) ** 0.5
        weight = ir.Value(name=f"w{index}", const_value=ir.tensor(array, name=f"w{index}"))
        strides = [steps[index]] * 2
        node = ir.node("Conv", [value, weight], {"strides": strides, "pads": [1, 1, 1, 1]})
        value = node.outputs[0]
        value.name, value.type = f"y{index}", ir.TensorType(ir.DataType.FLOAT)
        nodes, weights = [*nodes, node], [*weights, weight]
    graph = ir.Graph(inputs, [value], nodes=nodes, initializers=weights, opset_imports={"": 17})
    ir.save(ir.Model(graph, ir_version=8), tmp_path / "model.onnx")
    (tmp_path / "data").mkdir()
    for index in range(3):
        sample = rng.normal(size=(1, 3, 300, 300)).astype(np.float32)
        np.save(tmp_path / "data" / f"{index}.npy", sample)
    config = msgspec.structs.replace(find_preset("A8W8"), keep_only_if_better=False)
    config = msgspec.structs.replace(config, equalization=None, refinement=None)
    options = {"preset": None, "config": config, "promote": False}
    want = _quantized(tmp_path, **options)

    monkeypatch.setattr(sharded, "SHARD_SIZE", 1)
    with parallel.engine("loky", 2):
        assert _quantized(tmp_path, **options) == want


@contextlib.contextmanager
def _dask(workers: int):
    """Yield a client of processes of Dask, which have imported all they need before they are forked."""
    import dask
    import distributed

    settings = {f"distributed.comm.timeouts.{what}": "300s" for what in ("connect", "tcp")}
    settings["distributed.worker.multiprocessing-method"] = "forkserver"
    with dask.config.set(settings):
        needed = ["distributed.nanny", "distributed.worker", "joblib", sharded.__name__]
        distributed.utils.get_mp_context().set_forkserver_preload(needed)
        with (
            distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=":0"
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client


@pytest.fixture(scope="module")
def dask_workers():
    """Two processes of Dask."""
    with _dask(2) as client:
        yield client


@pytest.fixture(scope="module")
def once() -> dict[str, object]:
    """Options of one calibration, and nothing that is shared out beside it."""
    config = msgspec.structs.replace(find_preset("XINT8"), keep_only_if_better=False)
    config = msgspec.structs.replace(config, equalization=None, refinement=None)
    return {"preset": None, "config": config, "promote": False}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [7, 3, 1])
def test_dask_gives_the_same_bits(folder, once, monkeypatch, workers: int) -> None:
    want = _quantized(folder, **once)
    # A cluster of its own: one that is scaled up again after workers retired may wait for ever.
    with _dask(workers) as client, joblib.parallel_config(backend="dask", client=client):
        assert parallel.worker_count() == workers
        for size in (1, 5, 64):
            monkeypatch.setattr(sharded, "SHARD_SIZE", size)
            assert _quantized(folder, **once) == want, (workers, size)


@pytest.mark.slow
def test_dask_gives_the_same_bits_of_a_whole_run(folder, alone, dask_workers) -> None:
    with joblib.parallel_config(backend="dask", client=dask_workers):
        assert _quantized(folder) == alone


@pytest.mark.slow
def test_a_dask_worker_that_is_killed_costs_what_it_was_at(tmp_path, dask_workers) -> None:
    task = tasks.Recorded(tmp_path, {4: "kill"})
    with joblib.parallel_config(backend="dask", client=dask_workers):
        found = list(parallel.distributed_map(task, range(20), name="test"))
        sent = 2 * parallel.worker_count()
    assert found == [item * item for item in range(20)]
    assert task.runs(4) == 2
    # Results that were not fetched yet die with their worker.
    assert sum(task.runs(item) for item in range(20)) <= 20 + sent


@pytest.mark.slow
def test_with_a_state_a_killed_dask_worker_costs_one_shard(
    folder, alone, monkeypatch, tmp_path, dask_workers
) -> None:
    monkeypatch.setattr(sharded, "SHARD_SIZE", 5)
    monkeypatch.setattr(sys.modules["lowbit.api.quantize"], "Store", tasks.KillingStore)
    state = tmp_path / "state"
    with joblib.parallel_config(backend="dask", client=dask_workers):
        assert _quantized(folder, state_dir=state) == alone
    computed = len(list((tmp_path / "state-computed").iterdir()))
    assert computed == len(_kept(state)) + 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray warns of its own future
def test_ray_gives_the_same_bits(folder, once, monkeypatch) -> None:
    import ray

    want = _quantized(folder, **once)
    try:
        ray.init(address="local", num_cpus=7, include_dashboard=False, log_to_driver=False)
        for workers in (1, 2, 3, 7):
            with parallel.engine("ray=local", workers):
                assert parallel.worker_count() == workers
                for size in (1, 5, 64):
                    monkeypatch.setattr(sharded, "SHARD_SIZE", size)
                    assert _quantized(folder, **once) == want, (workers, size)
    finally:
        ray.shutdown()


@pytest.mark.parametrize("kind", ["list", "npz", "random", "reader", "tar", "made"])
def test_every_kind_of_data_can_be_shared_out(folder, monkeypatch, tmp_path, kind) -> None:
    monkeypatch.setattr(sharded, "SHARD_SIZE", 7)
    samples = [np.load(path) for path in sorted((folder / "data").iterdir())][:20]
    if kind == "npz":
        np.savez(tmp_path / "d.npz", x=np.concatenate(samples))
    if kind == "tar":
        with tarfile.open(tmp_path / "d.tar", "w") as archive:
            for path in sorted((folder / "data").iterdir())[:20]:
                archive.add(path, path.name)
    paths = {"npz": tmp_path / "d.npz", "tar": tmp_path / "d.tar", "random": "random"}

    def data() -> object:
        makers = {"list": list, "reader": iter, "made": lambda made: lambda: iter(made)}
        return makers[kind](samples) if kind in makers else paths[kind]

    want = _quantized(folder, data=data(), limit=16)
    with parallel.engine("loky", 2):
        assert _quantized(folder, data=data(), limit=16) == want


def test_presets_that_depend_on_the_order_of_samples_are_the_same(folder) -> None:
    want = _quantized(folder, "A8W8")
    with parallel.engine("loky", 2):
        assert _quantized(folder, "A8W8") == want


def test_a_broken_sample_is_named_by_the_worker(folder, tmp_path) -> None:
    for index in range(6):
        np.save(tmp_path / f"{index}.npy", np.full((1, 3, 6, 6), float(index), np.float32))
    np.save(tmp_path / "4.npy", np.full((1, 3, 6, 6), np.nan, np.float32))
    with parallel.engine("loky", 2), pytest.raises(DataError, match=r"file 4\.npy of .*NaN"):
        _quantized(folder, data=tmp_path)


def test_data_of_zeros_alone_is_refused_as_in_one_process(folder, tmp_path) -> None:
    for index in range(20):
        np.save(tmp_path / f"{index:02}.npy", np.zeros((1, 3, 6, 6), np.float32))
    with (
        parallel.engine("loky", 2),
        pytest.raises(DataError, match=r"all values of .* samples are 0"),
    ):
        _quantized(folder, data=tmp_path)


def _kept(state: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in state.rglob("*") if path.is_file()}


def test_a_second_run_runs_nothing_and_more_data_only_what_is_new(
    folder, alone, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(sharded, "SHARD_SIZE", 8)
    state, some = tmp_path / "state", tmp_path / "data"
    some.mkdir()
    for path in sorted((folder / "data").iterdir())[:32]:
        (some / path.name).symlink_to(path)
    _quantized(folder, data=some, state_dir=state)
    first = _kept(state)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished shard was run again")

    with monkeypatch.context() as context:
        context.setattr(sharded, "kept_session", refuse)
        _quantized(folder, data=some, state_dir=state)
    assert _kept(state) == first
    assert _quantized(folder, state_dir=state) == alone
    assert first.items() <= _kept(state).items()


_DRIVER = """
import os, pathlib, signal, sys
import lowbit
from lowbit.calibrate import sharded
sharded.SHARD_SIZE = 5

def progress(stage, done, total):
    if stage == "calibrate" and done >= 20:
        os.kill(os.getpid(), signal.SIGKILL)

folder, state = map(pathlib.Path, sys.argv[1:])
lowbit.quantize(
    folder / "model.onnx", data=folder / "data", preset="XINT8", state_dir=state, progress=progress
)
"""


def test_a_killed_driver_resumes(folder, alone, monkeypatch, tmp_path) -> None:
    state = tmp_path / "state"
    died = subprocess.run(
        [sys.executable, "-c", _DRIVER, folder, state],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert died.returncode == -signal.SIGKILL
    first = _kept(state)
    assert first

    monkeypatch.setattr(sharded, "SHARD_SIZE", 5)
    assert _quantized(folder, state_dir=state) == alone
    # What was finished was not run again.
    assert first.items() <= _kept(state).items()
