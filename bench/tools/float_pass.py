"""The floor: one plain onnxruntime pass of the float model over the same samples."""

from __future__ import annotations

import statistics
import time

from common import Watch, answer, feeds, request

asked, watch = request(), Watch()
import onnxruntime as ort  # noqa: E402

watch.lap("import")
session = ort.InferenceSession(asked["model"])
watch.lap("load")
passes = []
for _ in range(asked["settings"]["passes"]):
    start = time.perf_counter()
    for feed in feeds(asked):
        session.run(None, feed)
    passes.append(time.perf_counter() - start)
watch.lap("passes")
answer(watch, "onnxruntime", pass_seconds=statistics.median(passes))
