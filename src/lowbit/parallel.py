"""Every fan-out: threads of this process in order, or workers of the engine that was chosen.

NumPy and onnxruntime release the interpreter's lock, so threads of one process share models and arrays without
copying them; that is the default (``ordered_map``). Where an engine was chosen, ``distributed_map`` goes through
joblib: processes on this machine (loky), a Dask or a Ray cluster, or whatever backend the program has set with
``joblib.parallel_config``. Nothing imports an engine that was not asked for.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from lowbit.errors import ConfigError, LowbitError, WorkerError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

S = TypeVar("S")
T = TypeVar("T")

_IN_WORKER = contextvars.ContextVar("_IN_WORKER", default=False)


def cpu_count() -> int:
    """Return how many processors this process may share work among; a worker has one."""
    if _IN_WORKER.get():
        return 1
    allowed = getattr(os, "sched_getaffinity", None)  # Linux; containers get a part of a machine
    return os.cpu_count() or 1 if allowed is None else len(allowed(0))


Pool: TypeAlias = concurrent.futures.ThreadPoolExecutor


def ordered_map(
    work: Callable[[S], T],
    items: Iterable[S],
    threads: int | None = None,
    pool: Pool | None = None,
) -> Generator[T, None, None]:
    """Yield ``work(item)`` in order, with at most ``threads`` running and one more item read.

    A caller who stops early does not wait for results nobody will see. Where there is no more than
    one item, or one thread, the caller's does the work: to start another takes longer than much of it.
    So who maps many times gives a ``pool`` of as many threads.
    """
    threads = cpu_count() if threads is None else threads
    source = iter(items)
    ahead = list(itertools.islice(source, 2 if threads > 1 else 0))
    if len(ahead) < 2:
        yield from map(work, itertools.chain(ahead, source))
        return
    items = itertools.chain(ahead, source)
    shared = pool or Pool(threads)
    pending = collections.deque[concurrent.futures.Future[T]]()
    try:
        for item in items:
            pending.append(shared.submit(work, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        concurrent.futures.wait(pending)
        if pool is None:
            shared.shutdown()


def run_ahead(work: Callable[[S], T], items: Iterable[S]) -> Generator[T, None, None]:
    """Yield ``work(item)`` in order; while the caller has one result, a thread makes the next."""
    pending = collections.deque[concurrent.futures.Future[T]]()
    with Pool(1) as pool:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > 1:
                yield pending.popleft().result()
        yield from (future.result() for future in pending)


def worker_count() -> int | None:
    """Return how many workers the chosen engine has, or nothing if none was chosen.

    A program that never imported joblib has chosen none, so that asking costs nothing.
    """
    joblib = sys.modules.get("joblib")
    if joblib is None or _IN_WORKER.get():
        return None
    backend, jobs = joblib.parallel.get_active_backend()
    backends = joblib.parallel.BACKENDS
    if isinstance(backend, (backends["threading"], backends["sequential"])):
        return None
    count = int(joblib.effective_n_jobs(jobs))
    is_default = isinstance(backend, backends["loky"])
    return None if is_default and count == 1 else count


Shared = Mapping[str, "NDArray[Any]"]
"""Arrays that go to each worker once: by their file, or by the engine's object store."""


def distributed_map(
    task: Callable[..., T],
    items: Sequence[S],
    *,
    name: str,
    shared: Shared | None = None,
    threads: int | None = None,
) -> Generator[T, None, None]:
    """Yield ``task(item)`` in order, run by the chosen engine, or by threads if there is none.

    Task, items and results must be picklable, and a task must give the same for the same item: a
    worker that dies costs what it was at. A task that raises is tried three times, except for
    errors of this package, which say what is wrong with the item. ``str(item)`` is what messages
    call an item, and ``name`` what dashboards call the task. With ``shared`` arrays the task is
    called as ``task(item, shared)``. ``threads`` is how many run at once without an engine.
    """
    if worker_count() is None:
        call = task if shared is None else lambda item: task(item, shared)
        yield from ordered_map(call, items, threads)
        return
    yield from _Distributed(task, items, name, shared).results()


_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class _Failure:
    """The error of a task, as a value: raising it would end the tasks of others as well."""

    error: BaseException | None
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)  # by identity: Dask hashes what it calls
class _Call:
    """One task in a worker. Arrays that are shared are arguments, which engines send once."""

    task: Callable[..., Any]
    name: str
    keys: tuple[str, ...] | None

    @property
    def __name__(self) -> str:
        """The name that dashboards show."""
        return self.name

    def __call__(self, index: int, item: object, *arrays: Any) -> tuple[int, Any]:
        token = _IN_WORKER.set(True)
        try:
            if self.keys is None:
                return index, self.task(item)
            shared = dict(zip(self.keys, map(_fetched, arrays), strict=True))
            return index, self.task(item, shared)
        except Exception as error:
            own = error if isinstance(error, LowbitError) else None
            return index, _Failure(own, f"{type(error).__name__}: {error}")
        finally:
            _IN_WORKER.reset(token)


def _fetched(array: Any) -> Any:
    """Return a shared array, from Ray's object store if it is there."""
    if type(array).__name__ == "ObjectRef":
        import ray

        return ray.get(array)
    return array


class _Distributed(Generic[S, T]):
    """One map on the chosen engine, tried again where workers die."""

    def __init__(
        self, task: Callable[..., T], items: Sequence[S], name: str, shared: Shared | None
    ) -> None:
        self._items, self._name = items, name
        self._call = _Call(task, name.replace(" ", "_"), None if shared is None else tuple(shared))
        self._arrays = () if shared is None else tuple(shared.values())
        self._attempts = collections.Counter[int]()
        self._left = dict.fromkeys(range(len(items)))

    def results(self) -> Iterator[T]:
        """Yield the results in order, each as soon as those before it are there."""
        found: dict[int, T] = {}
        following = 0
        while self._left:
            for index, result in self._round():
                found[index] = result
                while following in found:
                    yield found.pop(following)
                    following += 1

    def _round(self) -> Iterator[tuple[int, T]]:
        """Yield what is left to do, until the engine breaks.

        What was running twice when it broke is run by itself, so that it is known who breaks it.
        """
        doubtful = [index for index in self._left if self._attempts[index] >= _ATTEMPTS - 1]
        source, started = iter(doubtful[:1] or list(self._left)), list[int]()
        running = self._run(source, started)
        try:
            for index, outcome in running:
                if isinstance(outcome, _Failure):
                    self._failed(index, outcome)
                else:
                    del self._left[index]
                    yield index, outcome
        except (LowbitError, GeneratorExit):
            # Nobody wants the rest. Workers finish what they are at: joblib would kill them.
            collections.deque(source, maxlen=0)
            with contextlib.suppress(Exception):
                collections.deque(running, maxlen=0)
            raise
        except Exception as error:  # each engine has its own kinds for workers that died
            reason = f"the worker died or was lost ({type(error).__name__}: {error})"
            for index in started:
                if index in self._left:
                    self._failed(index, _Failure(None, reason))
        finally:
            with warnings.catch_warnings():
                # joblib says that results were not used: after an error nobody wants them.
                warnings.simplefilter("ignore")
                running.close()

    def _failed(self, index: int, failure: _Failure) -> None:
        if failure.error is not None:
            raise failure.error
        self._attempts[index] += 1
        if self._attempts[index] >= _ATTEMPTS:
            raise WorkerError(
                f"{self._name} of {self._items[index]} failed {_ATTEMPTS} times; the last time: "
                f"{failure.reason[:500]}"
            )

    def _run(
        self, indices: Iterator[int], started: list[int]
    ) -> Generator[tuple[int, Any], None, None]:
        import joblib

        backend, _ = joblib.parallel.get_active_backend()
        arrays = _placed(self._arrays, type(backend).__module__)

        def calls(some: Iterable[int]) -> Iterator[Any]:
            for index in some:
                started.append(index)
                yield joblib.delayed(self._call)(index, self._items[index], *arrays)

        if backend.supports_return_generator:
            # One task at a time to a worker: what dies with it must be one task.
            parallel = joblib.Parallel(batch_size=1, return_as="generator_unordered")
            yield from parallel(calls(indices))
            return
        with joblib.Parallel(batch_size=1) as parallel:  # Ray gives all results at once
            size = 2 * (worker_count() or 1)
            while wave := list(itertools.islice(indices, size)):
                yield from parallel(calls(wave))


def _placed(arrays: Sequence[Any], engine: str) -> Sequence[Any]:
    """Return what stands for the arrays: joblib itself sees to files and to Dask's workers."""
    if not engine.startswith("ray."):
        return arrays
    import numpy as np
    import ray

    return [ray.put(np.asarray(array)) for array in arrays]


_LOCAL = "local"
_Start = Callable[[contextlib.ExitStack, str, str, int | None], dict[str, Any]]
"""Connects to an engine, or starts one; returns what joblib must know of it."""


@contextlib.contextmanager
def engine(cluster: str | None = None, workers: int | None = None) -> Iterator[None]:
    """Run ``distributed_map`` on an engine inside this context.

    Args:
        cluster: ``dask=ADDRESS`` or ``ray=ADDRESS`` (``local`` starts one on this machine), or the
            name of a joblib backend. Nothing: what the program has chosen, or processes if
            ``workers`` says how many.
        workers: How many processes, where the engine is started here.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}; at least one is needed")
    if cluster is None and workers is None:
        yield
        return
    kind, _, address = (cluster or "loky").partition("=")
    with contextlib.ExitStack() as stack:
        start: _Start = _ENGINES.get(kind, _joblib_backend)
        options = start(stack, kind, address, workers)
        import joblib

        stack.enter_context(joblib.parallel_config(**options))
        yield


def _joblib_backend(
    _: contextlib.ExitStack, kind: str, address: str, workers: int | None
) -> dict[str, Any]:
    import joblib

    if kind not in joblib.parallel.BACKENDS or address:
        known = [*_ENGINES, *joblib.parallel.BACKENDS]
        raise ConfigError(
            f"cluster {kind!r} is unknown{did_you_mean(kind, known)}; expected dask=ADDRESS, "
            f"ray=ADDRESS or a backend of joblib ({', '.join(joblib.parallel.BACKENDS)})"
        )
    return {"backend": kind, "n_jobs": workers or -1}


def _dask(stack: contextlib.ExitStack, _: str, address: str, workers: int | None) -> dict[str, Any]:
    try:
        import distributed
    except ImportError as error:
        raise _missing("dask", error) from error
    if address in ("", _LOCAL):
        local = distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=":0"
        )
        address = stack.enter_context(local).scheduler_address
    try:
        client = distributed.Client(address, set_as_default=False, timeout=30)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Dask scheduler answers at {address!r} ({error}); expected an address such as "
            "tcp://host:8786 (or dask=local)"
        ) from error
    return {"backend": "dask", "client": stack.enter_context(client)}


def _ray(stack: contextlib.ExitStack, _: str, address: str, workers: int | None) -> dict[str, Any]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise _missing("ray", error) from error
    register_ray()
    if not ray.is_initialized():
        here = {"address": _LOCAL, "num_cpus": workers}
        where = here if address in ("", _LOCAL) else {"address": address}
        try:
            ray.init(**where, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster answers at {address!r} ({error}); expected auto, an address such "
                "as host:6379, or ray=local"
            ) from error
        stack.callback(ray.shutdown)
    return {"backend": _kept_ray_workers(stack), "n_jobs": workers or -1}


def _kept_ray_workers(stack: contextlib.ExitStack) -> Any:
    """Return Ray's backend of joblib with workers that are started once, not anew for each map."""
    from ray.util.joblib.ray_backend import RayBackend

    class KeptWorkers(RayBackend):  # type: ignore[misc]  # Ray has no types
        def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
            if self._pool is None:
                return int(super().configure(n_jobs, parallel, **options))
            self.parallel = parallel
            return int(self.effective_n_jobs(n_jobs))

        def terminate(self) -> None:
            self.reset_batch_stats()

        def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: FBT001, FBT002
            self.end()
            super().abort_everything(ensure_ready)

        def end(self) -> None:
            super().terminate()

    backend = KeptWorkers()
    stack.callback(backend.end)
    return backend


_ENGINES: Mapping[str, _Start] = {"dask": _dask, "ray": _ray}


def _missing(extra: str, error: ImportError) -> ConfigError:
    return ConfigError(
        f"--cluster {extra}=... needs a package that is not installed ({error.name}): "
        f"pip install 'lowbit[{extra}]'"
    )
