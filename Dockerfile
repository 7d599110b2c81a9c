# docker build -t lowbit .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" lowbit quantize model.onnx int8.onnx --data images
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -rf /wheels && useradd --create-home lowbit
USER lowbit
WORKDIR /work
ENTRYPOINT ["lowbit"]
