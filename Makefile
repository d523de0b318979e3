# The two commands of the README, and what developers use. `make help` lists them.
PY = .venv/bin/python
BUILD = build
JOBS = $(shell nproc)
DATA ?=
CLASSES ?= photos
SAMPLES ?= 10000000

.PHONY: help setup run test test-c test-emulated test-python test-frameworks test-torch-suite \
        test-browser test-faults soak bench bench-peers sanitize format clean

help:
	@echo "make run [DATA=folder]  set up everything, train through feedmill and torch's DataLoader, compare"
	@echo "make test               set up everything and pass all tests"
	@echo "make test-emulated      the kernels on emulated CPUs, without AVX and with AVX-512"
	@echo "make test-frameworks    pass the tests with Lightning, Accelerate, transformers and timm"
	@echo "make test-torch-suite   PyTorch's own tests of its DataLoader, on torch's and on feedmill's"
	@echo "make test-browser       the page of feedmill report in a headless Chromium"
	@echo "make test-faults        every call of the native path fails once, and then for good"
	@echo "make soak [SAMPLES=n]   10 million samples, or n, with constant memory, threads, descriptors"
	@echo "make bench [DATA=folder] the pipeline alone, without Python"
	@echo "make bench-peers [DATA=folder] [CLASSES=photos,420,large]  beside DALI, FFCV and others"
	@echo "make sanitize           C tests under ASan+UBSan, then TSan"
	@echo "make clean              remove what the build made"

setup:
	@.ci/setup

run: setup
	@$(PY) benchmarks/bench_torch.py --train $(if $(DATA),--data "$(DATA)")

test: setup test-c test-python

$(BUILD)/configured: CMakeLists.txt tests/CMakeLists.txt benchmarks/CMakeLists.txt
	@cmake -S . -B $(BUILD) -DFM_WERROR=ON >/dev/null
	@touch $@

test-c: $(BUILD)/configured
	@cmake --build $(BUILD) -j $(JOBS) >$(BUILD)/log 2>&1 || { cat $(BUILD)/log; exit 1; }
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -LE emulated

# The kernels and the resize on an emulated CPU that has SSE4.1 and no AVX, and those for AVX-512.
test-emulated: setup $(BUILD)/configured
	@cmake --build $(BUILD) -j $(JOBS) >$(BUILD)/log 2>&1 || { cat $(BUILD)/log; exit 1; }
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -L emulated

test-python:
	@cmake --build $(BUILD) -j $(JOBS) --target mkjpeg slowfs stub_plugin >/dev/null
	@FEEDMILL_MKJPEG=$(BUILD)/tests/mkjpeg FEEDMILL_SLOWFS=$(BUILD)/tests/slowfs \
	    FEEDMILL_STUB_CUDA=$(abspath $(BUILD)/tests/libstub_plugin.so) \
	    $(PY) -m pytest -n 2 --dist worksteal tests/python

test-frameworks: setup
	@.ci/setup-frameworks
	@$(BUILD)/frameworks-venv/bin/python -m pytest -rs tests/frameworks

test-torch-suite: setup
	@$(PY) tests/torch_suite/run.py

test-browser: setup
	@$(PY) tests/browser/check_report.py --pictures $(BUILD)/report-pages

test-faults: setup $(BUILD)/configured
	@cmake --build $(BUILD) -j $(JOBS) --target inject_faults mkjpeg >/dev/null
	@FM_MKJPEG=$(BUILD)/tests/mkjpeg $(BUILD)/tests/inject_faults --jobs $(JOBS)
	@FM_MKJPEG=$(BUILD)/tests/mkjpeg $(BUILD)/tests/inject_faults --jobs $(JOBS) --lasting 1

# One sample of fifty comes through Python, beside the others.
soak: setup $(BUILD)/configured
	@cmake --build $(BUILD) -j $(JOBS) --target soak_loader mkjpeg >/dev/null
	@FM_MKJPEG=$(BUILD)/tests/mkjpeg $(BUILD)/tests/soak_loader $(SAMPLES)
	@$(PY) tests/soak/soak_dataloader.py --samples $$(($(SAMPLES) / 50))

bench: setup $(BUILD)/configured
	@test -n "$(DATA)" || test -d run-data/made || $(PY) benchmarks/bench_torch.py --make-only
	@cmake --build $(BUILD) -j $(JOBS) --target bench_pipeline >/dev/null
	@$(BUILD)/benchmarks/bench_pipeline "$(or $(DATA),run-data/made)"

bench-peers: setup $(BUILD)/configured
	@cmake --build $(BUILD) -j $(JOBS) --target bench_jpeg_limit >/dev/null
	@$(PY) benchmarks/bench_peers.py --classes $(CLASSES) $(if $(DATA),--data "$(DATA)")

# The kernels run on one thread: nothing for ThreadSanitizer, and minutes of it.
sanitize:
	@sanitized() { \
	    cmake --preset $$1 >/dev/null && \
	    { cmake --build build-$$1 -j $(JOBS) >build-$$1/log 2>&1 || \
	      { cat build-$$1/log; false; }; } && \
	    ctest --test-dir build-$$1 --output-on-failure -j $(JOBS) -LE 'house|emulated' -E "$$2"; \
	}; \
	sanitized asan '^$$' && sanitized tsan '^(test_resample|check_kernels|check_stores)'

format:
	@clang-format -i $$(git ls-files 'loader/*.[ch]' 'include/*.h' 'pytorch_ext/*.cpp' 'pytorch_ext/*.h' 'tests/*.c' 'benchmarks/*.c')

clean:
	@rm -rf build build-* dist run-data
