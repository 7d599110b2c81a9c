"""Running and observing single samples."""

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.observers import Observer, ObserverSpec
from lowbit.calibrate.sample_runner import SampleRunner
from lowbit.graph.session import session

_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,2,3] x) => (float[1,2,3] y) { y = Neg (x) }
"""


def test_what_is_observed_is_what_the_model_gives() -> None:
    specs = {"y": ObserverSpec(channel_axis=1), "x": ObserverSpec()}
    observer = Observer(specs)
    feeds = [np.full((1, 2, 3), k, np.float32) + np.arange(6).reshape(1, 2, 3) for k in range(3)]
    with session(ir.from_onnx_text(_MODEL), list(specs)) as running:
        runner = SampleRunner(running, specs, {}, observer)
        sizes = [runner.observe(runner.run({"x": x.astype(np.float32)})) for x in feeds]

    assert sizes == [48, 48, 48]
    found = observer.result()
    assert (found["y"].low, found["y"].high, found["x"].high) == (-7.0, 0.0, 7.0)
    np.testing.assert_array_equal(found["y"].channels, [-2.0, -5.0])
