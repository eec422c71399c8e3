# Every target sets up what it needs: a virtual environment in .venv, the dependencies, and the compiled kernels.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO ?= runs/demo
IMAGES ?= 1000
REAL ?= mobilenetv2_100
FUZZ_SECONDS ?= 300

.PHONY: demo demo-all test test-all check bench bench-full bench-real bench-runtime fuzz format clean help

## demo: compare the methods on the bundled model; under two minutes, writes runs/demo/report.html
demo: $(READY)
	$(BIN)/secateur compare --model bundled --eval-samples $(IMAGES) --out $(DEMO) --overwrite

## demo-all: the same, measured on all 10,000 test images
demo-all: $(READY)
	$(BIN)/secateur compare --model bundled --out $(DEMO) --overwrite

## test: the ordinary tests, on all cores
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal

## test-all: these and the slow ones
test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal -m ""

## check: lint, format, types
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

## bench: the kernels and passes against their rivals; minutes, on a machine that does nothing else
bench: $(READY)
	$(BIN)/python bench/run.py

## bench-full: the whole step on DeiT-S, and a shortened one on DeiT-B within 12 GiB; half an hour
bench-full: $(READY)
	$(BIN)/python bench/whole.py --precision auto --out bench/results/deit-small.json
	$(BIN)/python bench/whole.py --model deit_base_patch16_224 --samples 64 --batch-size 32 --precision auto --out bench/results/deit-base.json

## bench-real: the one-shot comparison on real images: make bench-real WEIGHTS=folder DATA=folder REAL=model; an hour or more
bench-real: $(READY)
	$(BIN)/python bench/real_images.py --model $(WEIGHTS)/$(REAL) --images $(DATA) --out bench/results/real-$(REAL).json
	$(BIN)/python bench/real_tables.py bench/results/real-$(REAL).json

## bench-runtime: the sparse runtime against others, in turns; an hour, on a machine that does nothing else
bench-runtime: $(READY)
	$(BIN)/python bench/runtime.py $(if $(DEEPSPARSE),--deepsparse $(DEEPSPARSE))

## fuzz: spoiled compiled models against the kernels under sanitizers; FUZZ_SECONDS of it
fuzz: $(READY)
	$(BIN)/python -c "import nanobind" && test -e $(BIN)/cmake || $(BIN)/pip install -q nanobind cmake
	$(BIN)/cmake -S . -B build/fuzz -DCMAKE_BUILD_TYPE=Debug -DSECATEUR_BF16=OFF -DCMAKE_CXX_FLAGS="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all" -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)
	$(BIN)/cmake --build build/fuzz
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 $(BIN)/python tests/fuzz.py --seconds $(FUZZ_SECONDS) --core $$(ls build/fuzz/_core*.so)

## format: puts right what a tool can put right
format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## clean: remove the environment and what was built or run in it
clean:
	rm -rf $(VENV) build dist runs

$(READY): pyproject.toml CMakeLists.txt constraints.txt $(wildcard csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e ".[dev]"
	touch $@

## help: this list
help:
	@sed -n 's/^## /  make /p' Makefile
