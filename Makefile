# The commands of the README; CMake does the building. Everything made lands in $(BUILD).
BUILD       ?= build
PREFIX      ?= /usr/local
CMAKE_FLAGS ?=
PYTEST      ?=
JOBS        ?= $(shell nproc)
TESTS        = tests/run $(BUILD)
MAKEFLAGS   += --no-print-directory
SANITIZER    = $(or $(shell command -v compute-sanitizer),/usr/local/cuda/bin/compute-sanitizer)

.PHONY: build run test test-gpu test-programs test-pytorch python sanitize sanitize-gpu bench-cpu bench-blas bench-gpu bench-compare report bench-pytorch modules format install clean

build: ## the library and the command
	cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_FLAGS)
	cmake --build $(BUILD) --parallel $(JOBS)

run: build ## the five reference problems on this machine's best device, checked against float64
	$(BUILD)/cli/tessera reference

test: build ## every test; PYTEST="-k strides -x" passes options on to pytest
	ctest --test-dir $(BUILD) --output-on-failure --exclude-regex '^pytest$$'
	$(TESTS) tests $(PYTEST)
	tests/pytorch/run $(BUILD) $(PYTEST)

test-pytorch: build ## the tests of the Python package alone, with a current torch and with 1.13.1
	tests/pytorch/run $(BUILD) $(PYTEST)

python: build ## the operator for python3's torch, so that PYTHONPATH=python is all it takes to use the package from here
	PYTHONPATH=python TESSERA_LIBRARY=$(BUILD)/libtessera.so python3 -m tessera build

test-programs: build ## NumPy, Octave, R and ScaLAPACK on libtessera_blas; installs what it needs, if root
	TESSERA_INSTALL=all $(TESTS) tests/test_blas_programs.py

test-gpu: build ## the tests of the GPU, twelve processes at a time
	tests/side_by_side $(BUILD) 12 tests -k "cuda and not test_cuda_host" $(PYTEST)

sanitize: build ## address, undefined-behaviour and thread sanitizers on a reduced set (part of `make test`)
	$(TESTS) tests/test_sanitizers.py

sanitize-gpu: build ## compute-sanitizer on a reduced set of the GPU tests
	for tool in memcheck racecheck initcheck synccheck; do \
	    PYTHON_PREFIX="$(SANITIZER) --tool $$tool --error-exitcode 99" tests/side_by_side $(BUILD) 12 tests -m sanitizer -k cuda -p no:faulthandler || exit 1; \
	done

bench-cpu: build ## GFLOP/s beside OpenBLAS, BLIS, oneDNN and MKL, interleaved in one run
	bench/cpu/run $(BUILD)

bench-blas: build ## cblas_sgemm beside tsr_gemm and OpenBLAS, on small and middling products
	bench/blas/run $(BUILD)

bench-gpu: build ## milliseconds beside torch.matmul, then every library of this GPU, interleaved; saved in bench/results
	bench/gpu/run $(BUILD) --save
	bench/gpu/run $(BUILD) --survey

.PHONY: bench-sustained
bench-sustained: build ## what a long run of one product gets: each library alone on the GPU; saved in bench/results
	bench/gpu/run $(BUILD) --sustained --save

bench-compare: ## what became slower or less accurate: BASE=FILE or REVISION:FILE, NEW=FILE (default: BASE's name in bench/results)
	python3 bench/regressions.py "$(BASE)" $(NEW)

# It calls plain make: what has $(MAKE) in it would measure even under -n.
report: ## the tables in docs/ from bench/results, and pages with charts in $(BUILD)/report; measures this machine first where it has no results
	python3 bench/report --needs-this-machine || { make build && bench/run $(BUILD); }
	python3 bench/report --pages $(BUILD)/report

bench-pytorch: build ## tessera.matmul and the drop-in beside torch, and a GPT-2 trained with both
	PYTHONPATH=python TESSERA_LIBRARY=$(BUILD)/libtessera.so python3 bench/pytorch/compare.py --save $(BUILD)/pytorch.json
	PYTHONPATH=python TESSERA_LIBRARY=$(BUILD)/libtessera.so python3 examples/train_gpt2.py --save $(BUILD)/gpt2.json

modules: ## the self-contained PyTorch modules of kernelbench/, from the library's sources
	python3 kernelbench/generate.py

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')

install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD)
