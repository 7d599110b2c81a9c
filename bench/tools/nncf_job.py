"""NNCF's post-training quantization of ONNX models, as it comes."""

from __future__ import annotations

from common import Reader, Watch, answer, feeds, request

asked, watch = request(), Watch()
import nncf  # noqa: E402
import onnx  # noqa: E402

watch.lap("import")
samples = list(feeds(asked))
model = nncf.quantize(
    onnx.load(asked["model"]),
    nncf.Dataset(samples),
    subset_size=len(Reader(asked)),
    model_type=nncf.ModelType.TRANSFORMER if asked["attention"] else None,
)
onnx.save(model, asked["output"])
watch.lap("quantize")
answer(watch, "nncf", "onnxruntime")
