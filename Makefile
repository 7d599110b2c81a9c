PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test corpus check bench bench-regress clean

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

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[bench]'
	touch $@

demo: $(VENV)/.installed  ## quantize the bundled example with XINT8, print accuracy, write a report
	$(BIN)/python examples/cifar10/demo.py

test: $(VENV)/.test  ## run every test, one process for each core
	$(BIN)/python -m pytest -n auto

CORPUS ?= A16W8,BF16,XINT8,A8W8,U8S8_PERCHANNEL

corpus: $(VENV)/.test  ## quantize every model of the onnx package's tests, with the presets of CORPUS
	LOWBIT_CORPUS=$(CORPUS) $(BIN)/python -m pytest tests/corpus -n auto

check: $(VENV)/.check  ## formatting, lints, types, layers
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy
	MYPYPATH=src:drop-in/src $(BIN)/mypy tests/quark/typed_script.py
	$(BIN)/lint-imports

bench: $(VENV)/.bench  ## time, memory and accuracy beside rivals, each in an environment of its own
	$(BIN)/python -m bench

bench-regress: $(VENV)/.installed  ## has it become slower? under a minute, bundled example alone
	$(BIN)/python -m bench.regress

clean:
	rm -rf $(VENV) demo-output
