PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-oldest corpus runtimes clients check docs bench bench-regress clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e .
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@

$(VENV)/.check: $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[check]'
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[docs]'
	touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[bench]'
	touch $@

demo: $(VENV)/.installed  ## quantize the bundled example with XINT8, print accuracy, write a report
	$(BIN)/python examples/cifar10/demo.py

# Programs that tests start read what the first one compiled, wherever that is turned off.
test test-oldest corpus: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.test  ## run every test, one process for each core
	$(BIN)/python -m pytest -n auto --dist loadgroup

test-oldest: OLDEST ?= python3.10
test-oldest:  ## the tests with the oldest Python and the oldest versions that pyproject.toml names
	$(OLDEST) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet uv
	.venv-oldest/bin/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct -e '.[test]'
	.venv-oldest/bin/python -m pytest -n auto --dist loadgroup -m 'not slow'

CORPUS ?= A16W8,BF16,XINT8,A8W8,U8S8_PERCHANNEL

corpus: $(VENV)/.test  ## quantize every model of the onnx package's tests, with the presets of CORPUS
	LOWBIT_CORPUS=$(CORPUS) $(BIN)/python -m pytest tests/corpus -n auto

runtimes: $(VENV)/.test  ## every preset in OpenVINO too
	$(BIN)/pip install --quiet -e '.[openvino]'
	$(BIN)/python -m pytest tests/graph/test_openvino.py tests/api/test_runtimes.py

CLIENTS := .venv-clients
OLIVE := $(CLIENTS)/olive/bin/python
QUARK := $(CLIENTS)/quark/bin/python

$(CLIENTS)/.olive: pyproject.toml
	$(PYTHON) -m venv $(CLIENTS)/olive
	$(OLIVE) -m pip install --quiet olive-ai==0.13.0 requests -e .
	touch $@

$(CLIENTS)/.quark:
	$(PYTHON) -m venv $(CLIENTS)/quark
	$(QUARK) -m pip install --quiet torch==2.13.0 amd-quark==0.13 onnxruntime onnxscript
	touch $@

clients: $(VENV)/.test $(CLIENTS)/.olive $(CLIENTS)/.quark  ## lowbit in Olive and beside AMD Quark; takes gigabytes
	OLIVE_PYTHON=$(abspath $(OLIVE)) QUARK_PYTHON=$(abspath $(QUARK)) $(BIN)/python -m pytest tests/clients

check: $(VENV)/.check  ## formatting, lints, types, layers
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy
	MYPYPATH=src:drop-in/src $(BIN)/mypy tests/quark/typed_script.py
	$(BIN)/lint-imports

docs: $(VENV)/.docs  ## write docs/cli.md from the parser, then build/site; a link that leads nowhere is an error
	$(BIN)/python -m lowbit.cli.manual > docs/cli.md
	$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.bench  ## time, memory and accuracy beside rivals, each in an environment of its own
	$(BIN)/python -m bench

bench-regress: $(VENV)/.installed  ## has it become slower? under a minute, bundled example alone
	$(BIN)/python -m bench.regress

clean:
	rm -rf $(VENV) $(CLIENTS) .venv-oldest build demo-output
