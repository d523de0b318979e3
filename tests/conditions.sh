#!/usr/bin/env bash
# Runs the tests of `make test` under unusual conditions, which must not change their results:
#
#     tests/conditions.sh [CONDITION...]
#
#     pinned    on one core
#     busy      beside a busy loop on each core
#     slow      with decoding that takes ten times as long
#     instant   with decoding that takes no time
#
# The last two use tests/support/decode_speed.c, in the build folders build-slow and build-instant.
#
# All of them take an hour or two on 2 cores. Needs what `make test` has installed and built.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=$(nproc)
loops=() failures=()
end_loops() {
    for loop in ${loops[@]+"${loops[@]}"}; do kill "$loop" 2>/dev/null || true; done
    loops=()
}
trap end_loops EXIT

# both_suites BUILD [COMMAND...]: runs the C tests and the Python tests of a build under COMMAND.
both_suites() {
    local build=$1
    shift
    "$@" ctest --test-dir "$build" --output-on-failure -j "$jobs" -LE 'emulated|truth' ||
        failures+=("C tests, $condition")
    FEEDMILL_MKJPEG=$build/tests/mkjpeg FEEDMILL_SLOWFS=$build/tests/slowfs \
        FEEDMILL_STUB_CUDA=$PWD/$build/tests/libstub_plugin.so \
        "$@" .venv/bin/python -m pytest -n 2 --dist worksteal tests/python ||
        failures+=("Python tests, $condition")
}

# with_decoding SPEED: builds the library, its tests and the Python package with this decode speed,
# and runs the tests.
with_decoding() {
    local build=build-$1
    cmake -S . -B "$build" -DFM_WERROR=ON -DFM_BENCHMARKS=OFF "-DFM_TEST_DECODE=$1" >/dev/null
    cmake --build "$build" -j "$jobs" >"$build/log" 2>&1 || { cat "$build/log"; exit 1; }
    rm -rf "$build/site"
    .venv/bin/python -m pip --disable-pip-version-check -q install --no-build-isolation --no-deps \
        --target "$build/site" --config-settings="cmake.define.FM_TEST_DECODE=$1" .
    PYTHONPATH=$PWD/$build/site both_suites "$build"
}

[ $# -gt 0 ] || set -- pinned busy slow instant
for condition; do
    printf '\n== %s (%ss)\n' "$condition" "$SECONDS"
    case $condition in
    pinned) both_suites build taskset -c "$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')" ;;
    busy)
        for _ in $(seq "$jobs"); do
            while :; do :; done &
            loops+=($!)
        done
        both_suites build
        end_loops
        ;;
    slow | instant) with_decoding "$condition" ;;
    *)
        echo "tests/conditions.sh: there is no condition $condition" >&2
        exit 2
        ;;
    esac
done
[ ${#failures[@]} = 0 ] || { printf 'failed: %s\n' "${failures[@]}"; exit 1; }
