# The two commands of the README, and what developers use. `make help` lists them.
PY = .venv/bin/python
BUILD = build
JOBS = $(shell nproc)
DATA ?=
CLASSES ?= photos
SAMPLES ?= 10000000
RUNS ?= 1000
SHARE ?= 1
# pytest's options for several processes. Three keep two cores busy, as many tests wait for processes
# that they start.
PARALLEL = -n 3 --dist worksteal

.PHONY: help setup run test test-c test-emulated test-aarch64 test-aarch64-kernels test-python \
        test-slow test-differential test-rng test-truth test-frameworks test-kills test-stateful-suites test-ray \
        test-public-scripts test-newest test-wheel test-torch-suite test-browser test-faults test-object-faults test-stores test-conditions test-long soak bench bench-peers \
        sanitize check-clang lint docs wheels release-check format clean

help:
	@echo "make run [DATA=folder]  set up everything, train through feedmill and torch's DataLoader, compare"
	@echo "make test               set up everything and pass the tests, but for the slowest"
	@echo "make test-slow          the Python tests that make test leaves out: minutes"
	@echo "make test-differential  2,000 random scripts, with torch's DataLoader and with feedmill's"
	@echo "make test-rng           2,000 random scripts with torch's random numbers, beside torch's DataLoader: 15 minutes"
	@echo "make test-emulated      the kernels on emulated CPUs, without AVX and with AVX-512"
	@echo "make test-aarch64       the C tests for AArch64, cross compiled, under qemu; -kernels: the kernels alone"
	@echo "make test-truth         what waits are blamed on, measured: on an idle machine of 2 CPUs or more"
	@echo "make test-frameworks    pass the tests with Lightning, Accelerate, transformers, timm, datasets, OpenCV and others"
	@echo "make test-ray           feedmill pack --ray on several local nodes, also into moto's S3; some are killed"
	@echo "make test-kills         trainings in these libraries and alone, killed 200 times and more"
	@echo "make test-stateful-suites  torchdata's and Accelerate's own tests of stateful loaders"
	@echo "make test-stores        names of objects, with boto3 and against moto's S3"
	@echo "make test-public-scripts  the runner of public codebases' scripts (tests/public_scripts)"
	@echo "make test-newest        the newest torch and torchvision (gigabytes): native, or torch's path"
	@echo "make test-wheel [SUITE=trixie] [WITH=packages]  the tests against an installed wheel, without sources"
	@echo "make test-torch-suite   PyTorch's own tests of its DataLoader, on torch's and on feedmill's"
	@echo "make test-browser       the page of feedmill report in a headless Chromium"
	@echo "make test-faults [SHARE=n]  every call of the native path fails once, and then for good; or one of n"
	@echo "make test-object-faults [RUNS=n]  1,000 epochs, or n, from a server with random faults"
	@echo "make soak [SAMPLES=n]   10 million samples, or n, with constant memory, threads, descriptors"
	@echo "make test-conditions    make test on one core, on busy cores, and with decoding of other speeds"
	@echo "make test-long          what takes hours: test-conditions, soak, bench-peers, test-newest, wheels"
	@echo "make bench [DATA=folder] the pipeline alone, without Python"
	@echo "make bench-peers [DATA=folder] [CLASSES=photos,420,large]  beside DALI, FFCV and others"
	@echo "make sanitize           C tests under ASan+UBSan, then TSan"
	@echo "make check-clang        all C and C++ also compiles with clang, without a warning"
	@echo "make lint               ruff, mypy --strict, and the extension module against its type stubs"
	@echo "make docs               the documentation in build/docs, and its snippets tested"
	@echo "make wheels             dist/*.whl for any Linux with glibc 2.28 or newer, with all libraries inside"
	@echo "make release-check      all that a release needs: lint, docs, wheels, sdist, metadata, installed"
	@echo "make clean              remove what the build made"

setup:
	@.ci/setup

run: setup
	@$(PY) benchmarks/bench_torch.py --train $(if $(DATA),--data "$(DATA)")

test: setup test-c test-python

# Builds the C library, its tests and benchmarks, and says what went wrong.
define build_c
cmake --build $(BUILD) -j $(JOBS) $(1) >$(BUILD)/log 2>&1 || { cat $(BUILD)/log; exit 1; }
endef

$(BUILD)/configured: CMakeLists.txt tests/CMakeLists.txt benchmarks/CMakeLists.txt
	@cmake -S . -B $(BUILD) -DFM_WERROR=ON >/dev/null
	@touch $@

# Not what measures: see test-truth. More tests at a time than CPUs, as some mostly wait: for a server,
# or a minute for an error.
test-c: $(BUILD)/configured
	@$(call build_c)
	@ctest --test-dir $(BUILD) --output-on-failure -j $$(($(JOBS) + 3)) -LE 'emulated|truth'

# The kernels and the resize on an emulated CPU that has SSE4.1 and no AVX, and those for AVX-512.
test-emulated: setup $(BUILD)/configured
	@$(call build_c)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -L emulated

# Cross compiled for AArch64; exits with 77, and so is skipped, where no cross compiler, emulator or
# arm64 library can be had.
define build_aarch64
.ci/setup-aarch64 && cmake --preset aarch64 >/dev/null && \
    { cmake --build build-aarch64 -j $(JOBS) $(1) >build-aarch64/log 2>&1 || \
      { cat build-aarch64/log; exit 1; }; }
endef

# Emulation is slow: up to an hour on 2 cores.
test-aarch64:
	@$(call build_aarch64) && \
	    ctest --test-dir build-aarch64 --output-on-failure -j $(JOBS) -LE 'house|emulated|truth' || \
	    test $$? = 77

test-aarch64-kernels:
	@$(call build_aarch64,--target check_colors check_tensor_warps check_jpeg_kernels check_kernels check_stores) && \
	    ctest --test-dir build-aarch64 --output-on-failure -j $(JOBS) -R '^check_[a-z_]*(colors|kernels|stores|warps)$$' || \
	    test $$? = 77

# Measures, and so needs a machine that does nothing else; says so where others took the CPUs.
test-truth: setup $(BUILD)/configured
	@$(call build_c,--target test_truth mkjpeg slowfs)
	@ctest --test-dir $(BUILD) --output-on-failure -L truth

test-python: $(BUILD)/configured
	@$(call build_c,--target mkjpeg slowfs stub_plugin fail_allocations)
	@FEEDMILL_MKJPEG=$(BUILD)/tests/mkjpeg FEEDMILL_SLOWFS=$(BUILD)/tests/slowfs \
	    FEEDMILL_STUB_CUDA=$(abspath $(BUILD)/tests/libstub_plugin.so) \
	    $(PY) -m pytest $(PARALLEL) -m "not slow" tests/python

# Trainings that are killed, more ranks, workers that are spawned; test-differential has its own.
test-slow: setup $(BUILD)/configured
	@$(call build_c,--target mkjpeg slowfs stub_plugin fail_allocations)
	@FEEDMILL_MKJPEG=$(BUILD)/tests/mkjpeg FEEDMILL_SLOWFS=$(BUILD)/tests/slowfs \
	    FEEDMILL_STUB_CUDA=$(abspath $(BUILD)/tests/libstub_plugin.so) \
	    $(PY) -m pytest $(PARALLEL) -m slow tests/python \
	        --ignore tests/python/test_differential.py

# FEEDMILL_DIFF_SCRIPTS says how many scripts, FEEDMILL_DIFF_SEED which ones.
test-differential: setup
	@FEEDMILL_DIFF_SCRIPTS=$(or $(FEEDMILL_DIFF_SCRIPTS),2000) $(PY) -m pytest $(PARALLEL) \
	    tests/python/test_differential.py

# FEEDMILL_RNG_SCRIPTS says how many scripts, FEEDMILL_RNG_SEED the first one's number.
test-rng: setup
	@FEEDMILL_RNG_SCRIPTS=$(or $(FEEDMILL_RNG_SCRIPTS),2000) $(PY) -m pytest $(PARALLEL) \
	    tests/python/test_rng_torch_random.py

# Only the runner; tests/public_scripts/README.md says how to run the scripts.
test-public-scripts: setup
	@$(PY) -m pytest tests/public_scripts

# Trainings that SIGKILL ends 200 times, and 12 times in each other library. About half an hour.
test-kills: setup
	@.ci/setup-frameworks
	@FEEDMILL_PLAIN_KILLS=200 FEEDMILL_KILLS=12 $(BUILD)/frameworks-venv/bin/python -m pytest -rs \
	    -o faulthandler_timeout=0 tests/frameworks/test_resume_*.py -k killed

# torchdata's and Accelerate's own tests of stateful loaders, with feedmill's.
test-stateful-suites: setup
	@.ci/setup-frameworks
	@$(BUILD)/frameworks-venv/bin/python tests/stateful_suites/run.py

test-frameworks: setup
	@.ci/setup-frameworks
	@$(BUILD)/frameworks-venv/bin/python -m pytest $(PARALLEL) -rs tests/frameworks \
	    $(addprefix tests/python/test_,opencv_files.py torchcodec_files.py deferred_opencv.py)

# FEEDMILL_RAY_IMAGES=20000 packs more images.
test-ray: setup
	@.ci/setup-beside ray-venv "ray boto3 moto flask" ray boto3 'moto[server]'
	@$(BUILD)/ray-venv/bin/python -m pytest -rs tests/ray

# What needs boto3, moto's server of S3 or pyarrow.
test-stores: setup $(BUILD)/configured
	@.ci/setup-beside stores-venv "boto3 moto flask pyarrow" boto3 'moto[server]' pyarrow
	@$(call build_c,--target mkjpeg)
	@FEEDMILL_MKJPEG=$(BUILD)/tests/mkjpeg $(BUILD)/stores-venv/bin/python -m pytest $(PARALLEL) -rs \
	    tests/python/test_remote_*.py

# The newest torch and torchvision, or others: FEEDMILL_NEWEST="torch==2.4.1 torchvision==0.19.1",
# or nightly ones: FEEDMILL_NEWEST="--pre --index-url ... torch torchvision".
test-newest: setup
	@.ci/setup-newest
	@$(BUILD)/newest-venv/bin/python -m pytest -n 2 tests/python/test_canary.py \
	    tests/python/test_internals.py --deselect \
	    tests/python/test_internals.py::test_the_installed_torch_has_all_private_names

# In an environment of its own, with SUITE in a chroot of that Debian suite (as root), which is made
# by debootstrap. WITH says what pip installs: WITH="torch==2.9.1 torchvision==0.24.1 pillow==12.0.0".
test-wheel:
	@ls dist/feedmill-*_$$(uname -m).whl >/dev/null 2>&1 || $(MAKE) wheels
	@python3 tests/wheel/check_wheel.py $(if $(SUITE),--suite $(SUITE)) $(if $(WITH),--with "$(WITH)")

test-torch-suite: setup
	@$(PY) tests/torch_suite/run.py

test-browser: setup
	@$(PY) tests/browser/check_report.py --pictures $(BUILD)/report-pages

# Twice as many processes as CPUs: the runs wait for threads more than they compute.
test-faults: setup $(BUILD)/configured
	@cmake --build $(BUILD) -j $(JOBS) --target inject_faults mkjpeg >/dev/null
	@FM_MKJPEG=$(BUILD)/tests/mkjpeg $(BUILD)/tests/inject_faults --share $(SHARE) --jobs $$((2 * $(JOBS)))
	@FM_MKJPEG=$(BUILD)/tests/mkjpeg $(BUILD)/tests/inject_faults --share $(SHARE) --jobs $$((2 * $(JOBS))) --lasting 1

# Ten runs by each process. Most of a run is waiting, so many of them run at once.
test-object-faults: setup $(BUILD)/configured
	@cmake --build $(BUILD) -j $(JOBS) --target test_remote_epochs mkjpeg >/dev/null
	@seq 0 10 $$(($(RUNS) - 1)) | FM_MKJPEG=$(BUILD)/tests/mkjpeg \
		xargs -P 24 -I FIRST sh -c "$(BUILD)/tests/test_remote_epochs 10 FIRST >$(BUILD)/object-faults-FIRST.log 2>&1 || { cat $(BUILD)/object-faults-FIRST.log; exit 1; }"
	@echo "$(RUNS) runs with random faults: every sample was right or reported, and nothing leaked"

# One sample of fifty comes through Python, beside the others.
soak: setup $(BUILD)/configured
	@cmake --build $(BUILD) -j $(JOBS) --target soak_loader mkjpeg >/dev/null
	@FM_MKJPEG=$(BUILD)/tests/mkjpeg $(BUILD)/tests/soak_loader $(SAMPLES)
	@$(PY) tests/soak/soak_dataloader.py --samples $$(($(SAMPLES) / 50))

test-conditions: test
	@tests/conditions.sh

test-long: test-conditions soak bench-peers test-newest wheels

bench: setup $(BUILD)/configured
	@test -n "$(DATA)" || test -d run-data/made || $(PY) benchmarks/bench_torch.py --make-only
	@$(call build_c,--target bench_pipeline)
	@$(BUILD)/benchmarks/bench_pipeline "$(or $(DATA),run-data/made)"

bench-peers: setup $(BUILD)/configured
	@$(call build_c,--target bench_jpeg_limit)
	@$(PY) benchmarks/bench_peers.py --classes $(CLASSES) $(if $(DATA),--data "$(DATA)")

# Not under ThreadSanitizer, which takes minutes for them: tests that never start a thread, as it can
# find nothing there; and test_pipeline with other kernels than the CPU's best, as kernels have no
# variables that threads could share.
sanitize: setup
	@sanitized() { \
	    cmake --preset $$1 >/dev/null && \
	    { cmake --build build-$$1 -j $(JOBS) >build-$$1/log 2>&1 || \
	      { cat build-$$1/log; false; }; } && \
	    ctest --test-dir build-$$1 --output-on-failure -j $(JOBS) -LE 'house|emulated' -E "$$2"; \
	}; \
	sanitized asan '^$$' && \
	sanitized tsan '^(test_(jpeg|mapping|operations|pipeline_|render|resample|transcode)|check_(colors|jpeg_kernels|kernels|stores))'

check-clang:
	@command -v clang >/dev/null && command -v clang++ >/dev/null || \
	    { echo "make check-clang needs clang (Debian, Ubuntu: apt-get install clang)"; exit 1; }
	@.ci/setup
	@cmake --preset clang >/dev/null
	@cmake --build build-clang -j $(JOBS) >build-clang/log 2>&1 || { cat build-clang/log; exit 1; }

lint: setup
	@.ci/setup-lint
	@$(PY) -m ruff check . .ci
	@$(PY) -m mypy
	@$(PY) -m mypy.stubtest --concise feedmill._native

# Warnings are errors, also about links that lead nowhere.
docs: setup
	@.ci/setup-docs
	@$(BUILD)/docs-venv/bin/python -m sphinx -q -n -W --keep-going -b html -d $(BUILD)/docs-doctrees \
	    pytorch_ext/docs $(BUILD)/docs
	@$(PY) -m pytest tests/python/test_readme.py
	@echo "see $(BUILD)/docs/index.html"

wheels:
	@python3 .ci/wheels/build_wheels.py

release-check: lint docs
	@python3 .ci/release_check.py

format:
	@clang-format -i $$(git ls-files 'loader/*.[ch]' 'include/*.h' 'pytorch_ext/*.cpp' 'pytorch_ext/*.h' 'tests/*.c' 'benchmarks/*.c')

clean:
	@rm -rf build build-* dist run-data
