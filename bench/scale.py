"""The cost of calibration in shards, and its estimate for a large cluster.

    python -m bench.scale MODEL DATA [--samples 512] [--preprocess imagenet]

Measures this machine in CPU seconds, which other programs on it do not change much; estimates many workers
on paper; checks that against a simulated cluster with latency and deaths; and draws docs/scale.svg.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import heapq
import math
import os
import pathlib
import pickle
import random
import time

from lowbit import parallel
from lowbit.api.quantize import planned_state
from lowbit.calibrate import sharded
from lowbit.calibrate.collect import collect
from lowbit.data import open_data
from lowbit.data.shards import Selection
from lowbit.graph.session import model_inputs

_DRAWING = pathlib.Path(__file__).parent.parent / "docs" / "scale.svg"


@dataclasses.dataclass(frozen=True)
class Timed:
    """A task with its CPU seconds and its process."""

    task: object

    def __call__(self, group, shared):
        """Run the task."""
        begun = time.process_time()
        result = self.task(group, shared)
        return result, time.process_time() - begun, os.getpid()


@dataclasses.dataclass
class Measured:
    """The CPU seconds of one calibration: the driver's, and each worker's."""

    driver: float = 0.0
    wall: float = 0.0
    workers: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    result_bytes: int = 0
    model_bytes: int = 0
    merge: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it takes where every process has a core to itself."""
        return self.driver + max(self.workers.values())


def measure(state, data, workers: int) -> Measured:
    """Calibrate on so many processes."""
    found = Measured()
    plain = sharded.distributed_map

    def timed(task, groups, *, name, shared):
        found.model_bytes = sum(array.nbytes for array in shared.values())
        for result, seconds, process in plain(Timed(task), groups, name=name, shared=shared):
            found.workers[process] += seconds
            found.result_bytes = len(pickle.dumps(result))
            yield result

    sharded.distributed_map = timed
    begun, wall = time.process_time(), time.perf_counter()
    try:
        with parallel.engine("loky", workers):
            stats = collect(state.calibrated_model, state.plan, data)
    finally:
        sharded.distributed_map = plain
    found.driver, found.wall = time.process_time() - begun, time.perf_counter() - wall
    packed = pickle.dumps(stats)
    begun = time.process_time()
    for _ in range(20):
        _ = pickle.loads(packed) | stats  # noqa: S301 - what merging one result costs
    found.merge = (time.process_time() - begun) / 20
    return found


@dataclasses.dataclass(frozen=True)
class Costs:
    """The parts of a calibration, in seconds and bytes."""

    sample: float
    start: float
    merge: float
    serial: float
    result_bytes: float
    model_bytes: float


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster; ``lifetime`` is how long a worker lives on average, in seconds."""

    workers: int
    bandwidth: float = 1.25e9
    latency: float = 0.02
    lifetime: float = math.inf
    restart: float = 60.0


def on_paper(costs: Costs, cluster: Cluster, samples: int, groups: int) -> float:
    """Return how long a calibration takes: serial part, model out, work, results in and merged."""
    group = samples / groups * costs.sample
    if math.isfinite(cluster.lifetime):
        # The expected time of work that starts again at each death.
        again = cluster.lifetime + cluster.restart + costs.start
        group = math.expm1(group / cluster.lifetime) * again
    group += 2 * cluster.latency
    rounds = math.ceil(groups / cluster.workers)
    sent = cluster.workers * costs.model_bytes / cluster.bandwidth
    merged = max(costs.merge, costs.result_bytes / cluster.bandwidth)
    # Results of all rounds but the last are merged while workers work.
    last = min(groups, cluster.workers) * merged
    busy = max(rounds * group, (groups - min(groups, cluster.workers)) * merged)
    return costs.serial + sent + costs.start + busy + last


def simulated(costs: Costs, cluster: Cluster, samples: int, groups: int, seed: int = 0) -> float:
    """Return the same of a simulated cluster: events in order, one link and one merging driver."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    send = costs.model_bytes / cluster.bandwidth
    merge = max(costs.merge, costs.result_bytes / cluster.bandwidth)
    work = samples / groups * costs.sample
    free = [costs.serial + (i + 1) * send + costs.start for i in range(cluster.workers)]
    heapq.heapify(free)
    left, done = groups, []
    while left:
        now = heapq.heappop(free)
        latency = rng.expovariate(1 / cluster.latency) + rng.expovariate(1 / cluster.latency)
        dies = (
            rng.expovariate(1 / cluster.lifetime) if math.isfinite(cluster.lifetime) else math.inf
        )
        if dies < work:
            heapq.heappush(free, now + dies + cluster.restart + costs.start)
            continue
        left -= 1
        done.append(now + work + latency)
        heapq.heappush(free, now + work + latency)
    merged = 0.0
    for finished in sorted(done):
        merged = max(merged, finished) + merge
    return merged


def main() -> None:
    """Measure, estimate, simulate, print and draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--preprocess")
    args = parser.parse_args()
    state = planned_state(args.model, "XINT8")
    opened = open_data(args.data, model_inputs(state.loaded), preprocessing=args.preprocess)
    numbers = [index % len(opened) for index in range(args.samples)]
    sharded.SHARD_SIZE = 32
    rows = {}
    for workers in (2, 3, 4):
        rows[workers] = measure(state, Selection(opened, numbers), workers)
    total = sum(rows[2].workers.values())
    one = rows[2].driver + total
    for workers, row in rows.items():
        shares = ", ".join(f"{s:.1f}" for s in row.workers.values())
        print(
            f"{workers} workers: {one / row.seconds:.2f} times one; driver {row.driver:.2f} s, "
            f"workers {shares} s of CPU; {row.wall:.1f} s of wall time"
        )
    base = rows[2]
    costs = Costs(
        sample=total / args.samples,
        start=3.0,
        merge=base.merge,
        serial=base.driver,
        result_bytes=base.result_bytes,
        model_bytes=base.model_bytes,
    )
    print(costs)
    estimate(costs, rows, one)


def estimate(costs: Costs, rows: dict[int, Measured], one: float) -> None:
    """Print many workers on paper and simulated, and draw them."""
    samples, points = 1_000_000, []
    alone = costs.serial + samples * costs.sample
    for workers in (1, 10, 100, 1000, 10_000):
        groups = 4 * workers
        for lifetime in (math.inf, 3600.0):
            cluster = Cluster(workers, lifetime=lifetime)
            paper = on_paper(costs, cluster, samples, groups)
            made = simulated(costs, cluster, samples, groups)
            print(
                f"{workers} workers, lifetime {lifetime} s: paper {paper:.0f} s, simulated "
                f"{made:.0f} s, {alone / made:.0f} times one, "
                f"{groups * costs.result_bytes / 1e9:.2f} GB in, "
                f"{workers * costs.model_bytes / 1e9:.2f} GB out"
            )
            if math.isinf(lifetime):
                points.append((workers, alone / paper, alone / made))
    measured = [(w, one / row.seconds) for w, row in rows.items()]
    _DRAWING.write_text(_drawn(points, measured), encoding="utf-8")


def _drawn(points, measured) -> str:
    """Return a drawing of speed against workers, both by powers of ten."""

    def at(x: float, y: float) -> tuple[float, float]:
        return 60 + 120 * math.log10(x), 300 - 65 * math.log10(max(y, 1.0))

    head = 'viewBox="0 0 620 340" font-family="sans-serif" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {head}>']
    parts.append('<rect width="620" height="340" fill="white"/>')
    for power in range(5):
        x, y = at(10**power, 10**power)
        parts.append(
            f'<path d="M60 {y:.1f}H580M{x:.1f} 300V20" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="318" text-anchor="middle">{10**power}</text>'
            f'<text x="52" y="{y + 4:.1f}" text-anchor="end">{10**power}</text>'
        )
    line = " ".join("{:.1f},{:.1f}".format(*at(w, p)) for w, p, _ in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1565c0" stroke-width="2"/>')
    parts += [
        '<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="none" stroke="#c62828"/>'.format(*at(w, s))
        for w, _, s in points
    ]
    parts += [
        '<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="black"/>'.format(*at(w, s))
        for w, s in measured
    ]
    parts.append(
        '<text x="320" y="335" text-anchor="middle">workers</text>'
        '<text x="70" y="34">times one worker: line on paper, circles simulated (a million '
        "samples), dots measured here</text></svg>"
    )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
