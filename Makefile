# The commands of the README; CMake does the building. Everything made lands in $(BUILD).
BUILD       ?= build
PREFIX      ?= /usr/local
CMAKE_FLAGS ?=
PYTEST      ?=
JOBS        ?= $(shell nproc)
SANITIZER    = $(or $(shell command -v compute-sanitizer),/usr/local/cuda/bin/compute-sanitizer)
PACKAGE      = PYTHONPATH=python TESSERA_LIBRARY=$(BUILD)/libtessera.so python3
MAKEFLAGS   += --no-print-directory

.PHONY: build run help tests test check test-pytorch test-programs test-gpu sanitize sanitize-gpu soak-gpu \
        mutants fuzz \
        bench-cpu bench-cpu-sweep bench-blas bench-gpu bench-sustained bench-sweep bench-pytorch bench-models \
        bench-compare report modules python \
        format install uninstall wheel deb first-hour clean

build: ## the library and the command (the default)
	cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_FLAGS)
	cmake --build $(BUILD) --parallel $(JOBS)

run: build ## the five reference problems on this machine's best device, checked against float64
	$(BUILD)/cli/tessera reference

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 24

# ---- Tests ----

tests: build # what they need beside the library
	cmake --build $(BUILD) --parallel $(JOBS) --target tests

test: ## every test; PYTEST="-k strides -x" passes options on to pytest
	tests/all $(BUILD) $(PYTEST)

check: ## for each commit, a minute and a half: the C tests, a sample of all others, documents, formatting
	tests/all $(BUILD) --quick $(PYTEST)

test-pytorch: build ## the tests of the Python package alone, with a current torch and with 1.13.1
	tests/pytorch/run $(BUILD) $(PYTEST)

test-programs: tests ## Octave, R, ScaLAPACK on libtessera_blas; the library on 64-bit ARM; pages in a browser; installs, if root
	TESSERA_INSTALL=all tests/run $(BUILD) tests/test_blas_programs.py tests/test_aarch64.py tests/test_command.py \
	    tests/test_results.py

test-gpu: tests ## the tests of the GPU, twelve processes at a time
	tests/side_by_side $(BUILD) 12 tests -k "cuda and not test_cuda_host" $(PYTEST)

sanitize: tests ## address, undefined-behaviour, thread and memory sanitizers on a reduced set (most of it in `make test`)
	TESSERA_SANITIZERS=all tests/run $(BUILD) tests/test_sanitizers.py

sanitize-gpu: tests ## compute-sanitizer on a reduced set of the GPU tests
	for tool in memcheck racecheck initcheck synccheck; do \
	    PYTHON_PREFIX="$(SANITIZER) --tool $$tool --error-exitcode 99" \
	        tests/side_by_side $(BUILD) 12 tests -m sanitizer -k cuda -p no:faulthandler || exit 1; \
	done

soak-gpu: build ## every kernel family on this machine's GPU for a minute (SECONDS=60): bits, threads, graphs, memory
	TESSERA_LIBRARY=$(BUILD)/libtessera.so python3 tests/gpu_soak.py --seconds $(or $(SECONDS),60)

mutants: tests ## faults put into the sources one at a time: which do the tests find? (`make test` tries a few)
	tests/mutants/run $(BUILD)

fuzz: build ## two minutes of each fuzz target (SECONDS=120); libFuzzer if clang is installed, else a driver of our own
	tests/fuzz/run $(BUILD) $(or $(SECONDS),120)

format: ## clang-format over C and CUDA, ruff over Python; both are installed into $(BUILD)
	mkdir -p $(BUILD)
	tests/format $(BUILD)

# ---- Benchmarks ----

bench-cpu: build ## GFLOP/s beside OpenBLAS, BLIS, oneDNN and MKL, interleaved in one run
	bench/cpu/run $(BUILD)

bench-cpu-sweep: build ## random products on the CPU beside other libraries
	bench/cpu/run $(BUILD) --sweep --save bench/results/sweep-cpu.json

bench-blas: build ## cblas_sgemm beside tsr_gemm and OpenBLAS, on small and medium products
	bench/cpu/run $(BUILD) --topic blas --save bench/results/blas-small.json

bench-gpu: build ## milliseconds beside torch.matmul and every other library, interleaved; saved in bench/results
	bench/gpu/run $(BUILD) --save
	bench/gpu/run $(BUILD) --survey

bench-sustained: build ## what a long run of one product gets: each library alone on the GPU; saved in bench/results
	bench/gpu/run $(BUILD) --sustained --save

bench-sweep: build ## random products of each kind beside torch float32; saved in bench/results
	bench/gpu/run $(BUILD) --sweep --save

bench-pytorch: build ## tessera.matmul, attention and the drop-in beside torch, and a GPT-2 trained with both
	$(PACKAGE) bench/pytorch/compare.py --save $(BUILD)/pytorch.json
	$(PACKAGE) bench/gpu/attention.py --sweep 60 --save
	$(PACKAGE) examples/train_gpt2.py --save $(BUILD)/gpt2.json

bench-models: build ## training steps of models and their products beside torch; saved in bench/results
	$(PACKAGE) bench/pytorch/models.py --tf32 --yardstick --alone --compile --save

bench-compare: ## what became slower or less accurate: BASE=FILE or REVISION:FILE, NEW=FILE
	python3 bench/regressions.py "$(BASE)" $(NEW)

# It calls plain make: what has $(MAKE) in it would measure even under -n.
report: ## the tables in docs/, and pages with charts in $(BUILD)/report; first measures this machine (minutes) if it is new
	python3 bench/report --measured $(BUILD)/results || { make build && bench/run $(BUILD); }
	python3 bench/report --pages $(BUILD)/report --here $(BUILD)/results

# ---- Python and installing ----

modules: ## the five PyTorch modules that kernelbench/ keeps, and all fifteen in $(BUILD)/kernelbench
	python3 kernelbench/generate.py
	python3 kernelbench/generate.py --all $(BUILD)/kernelbench

python: build ## the operator for python3's torch: PYTHONPATH=python is then all it takes to use the package from here
	$(PACKAGE) -m tessera build

install: build ## the library, the command and the headers, below PREFIX, if `tessera selftest` passes
	$(BUILD)/cli/tessera selftest
	cmake --install $(BUILD) --prefix $(PREFIX)

uninstall: ## removes what `make install` put there
	sed 's,^,$(DESTDIR),' $(BUILD)/install_manifest.txt | xargs -d '\n' rm -fv
	sed -n 's,^\(.*\)/tessera-config.cmake$$,$(DESTDIR)\1,p' $(BUILD)/install_manifest.txt | while read -r folder; do \
	    [ ! -d "$$folder" ] || rmdir "$$folder"; done

wheel: ## a wheel that needs no compiler, with operators for current releases of torch (TORCH="2.13.0"), in $(BUILD)/dist
	packaging/wheel.py $(BUILD) $(TORCH)

deb: ## Debian packages, in $(BUILD)/deb; needs debhelper and dh-python
	packaging/deb $(BUILD)

first-hour: build ## part of `make test`: every package and way to install it, used and removed; Debian packages if root
	tests/run $(BUILD) tests/test_first_hour.py tests/test_install.py

clean: ## removes $(BUILD)
	rm -rf $(BUILD)
