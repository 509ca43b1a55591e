# The commands of the README; CMake does the building. Everything made lands in $(BUILD).
BUILD       ?= build
PREFIX      ?= /usr/local
CMAKE_FLAGS ?=
PYTEST      ?=
JOBS        ?= $(shell nproc)
TESTS        = tests/run $(BUILD)
MAKEFLAGS   += --no-print-directory
SANITIZER    = $(or $(shell command -v compute-sanitizer),/usr/local/cuda/bin/compute-sanitizer)

.PHONY: build run test sanitize sanitize-gpu bench-cpu bench-gpu modules format install clean

build: ## the library and the command
	cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_FLAGS)
	cmake --build $(BUILD) --parallel $(JOBS)

run: build ## the five reference problems on this machine's best device, checked against float64
	$(BUILD)/cli/tessera reference

test: build ## every test; PYTEST="-k strides -x" passes options on to pytest
	ctest --test-dir $(BUILD) --output-on-failure --exclude-regex '^pytest$$'
	$(TESTS) tests $(PYTEST)

sanitize: build ## address, undefined-behaviour and thread sanitizers on a reduced set (part of `make test`)
	$(TESTS) tests/test_sanitizers.py

sanitize-gpu: build ## compute-sanitizer on a reduced set of the GPU tests
	for tool in memcheck racecheck initcheck synccheck; do \
	    PYTHON_PREFIX="$(SANITIZER) --tool $$tool --error-exitcode 99" $(TESTS) tests -m sanitizer -k cuda -p no:faulthandler || exit 1; \
	done

bench-cpu: build ## GFLOP/s beside OpenBLAS, BLIS and oneDNN, interleaved in one run
	bench/cpu/run $(BUILD)

bench-gpu: build ## milliseconds beside torch.matmul, interleaved in one run
	bench/gpu/run $(BUILD)

modules: ## the self-contained PyTorch modules of kernelbench/, from the library's sources
	python3 kernelbench/generate.py

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')

install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD)
