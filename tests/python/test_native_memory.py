"""Each allocation of the extension module fails once. The result must be a Python exception or an
error of the batch, and the next loader must work."""

import os
from pathlib import Path

import pytest
from helpers import run_script, save_jpeg, skip

# Which allocations fail: those of the module and of the C++ library that it calls, or those of
# Python for the module.
CALLERS = {"module": ["_native.abi3", "libstdc++"], "python": ["the executable", "libpython"]}

SCRIPT = """
import ctypes, gc, os, signal, sys
import torch
from feedmill._ops import native
from feedmill.planner.plan import RANDOM_RESIZED_CROP, Op

source, callers, paths = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
N = len(paths)
OPS = [Op(RANDOM_RESIZED_CROP, 24, 32, 0, 0.08, 1.0, 0.75, 4 / 3)]
FAIL = ctypes.CDLL(os.environ["LD_PRELOAD"])
NAMES = b"".join(name.encode() + b"\\0" for name in callers) + b"\\0"
files = [open(path, "rb").read() for path in paths]
values = torch.arange(float(N * 6)).reshape(N, 6)


def open_loader():
    options = dict(n_samples=N, batch_size=3, n_threads=1, prefetch_batches=2, reader="pread",
                   read_depth=2, read_ahead_bytes=1 << 18, memory_budget_bytes=64 << 20)
    if source == "rows":
        array = (values.data_ptr(), N, 24, 24, 2, 32, (6,))
        return native.Loader(ops=[], dtype="float32", arrays=[array], owners=values, **options)
    if source == "cache":
        options["cache"] = native.Cache(4 << 20)
    if source == "alloc":
        def alloc(n_bytes):
            owner = torch.empty(n_bytes, dtype=torch.uint8)
            return owner.data_ptr(), owner
        options["alloc"] = alloc
    return native.Loader(ops=OPS, dtype="uint8", **options)


def submit(loader, indices):
    if source == "rows":
        return loader.submit_rows(native.indices(indices, N))
    data = [files[i] for i in indices] if source == "bytes" else None
    return loader.submit(indices, [paths[i] for i in indices], data)


def tensors_of(payload):
    if source == "alloc":
        return [payload]
    return [torch.from_dlpack(one) for one in (payload if source == "rows" else [payload])]


def check_error(payload):
    if "memory" not in payload:
        raise AssertionError(f"the error does not name the memory: {payload}")


def epoch(got):
    loader = open_loader()
    try:
        loader.start(7, 0)
        for first in range(0, N, 3):
            submit(loader, list(range(first, min(first + 3, N))))
            while loader.n_pending > 1:
                take(loader, got)
        loader.finish()
        while loader.n_pending:
            take(loader, got)
        loader.stats(), loader.steps(0), loader.slow_samples(), loader.sample_records(0)
    finally:
        loader.close()


def take(loader, got):
    outcome, payload, n = loader.next(-1)
    if outcome < 0:
        check_error(payload)
        got.append(None)
    elif outcome == native.FALLBACK:
        check_error(loader.fallback()[6])
        loader.fallback_done(False)
    else:
        assert outcome == native.OK, outcome
        got.append([one.clone() for one in tensors_of(payload)])


def same(got, wanted):
    return len(got) == len(wanted) and all(
        len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
        for a, b in zip(got, wanted))


def compare(got, wanted):
    for mine, want in zip(got, wanted):
        if mine is not None and source != "alloc":
            assert same([mine], [want]), "other pixels"


def is_right(error):
    if not isinstance(error, Exception):
        return False
    if isinstance(error, native.Error):
        return "memory" in str(error)
    # torch raises an error of its own if it can't allocate a tensor's Python object.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


# The call itself may allocate memory and fail.
def n_allocations():
    while True:
        try:
            return FAIL.fail_allocations_end()
        except MemoryError:
            continue


# Lets the nth allocation fail, and returns what happened in one line.
def run_once(n):
    got, again, error = [], [], None
    FAIL.fail_allocations_begin(NAMES, n)
    try:
        epoch(got)
    except BaseException as caught:
        error = caught
    if n_allocations() < n:
        return "no such allocation"
    if error is not None and not is_right(error):
        return f"wrong: {type(error).__name__}: {error}"
    compare(got, wanted)
    outcome = "passed" if error is None else "raised"
    error = None
    epoch(again)
    assert len(again) == len(wanted)
    compare(again, wanted)
    return outcome


# The same in a child process, which may crash.
def run_apart(n):
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # ends a child that hangs
        try:
            line = run_once(n)
        except BaseException as error:
            line = f"wrong afterwards: {type(error).__name__}: {error}"
        os.write(writing, line.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        line = pipe.read()
    _, status = os.waitpid(child, 0)
    return line if status == 0 else f"wrong: the process ended with status {status}"


wanted = []
epoch(wanted)
assert len(wanted) == -(-N // 3)
gc.freeze()  # a collection in a child would copy all of its pages
gc.disable()
n, counts = 1, {"passed": 0, "raised": 0}
while (outcome := run_apart(n)) != "no such allocation":
    if outcome in counts:
        counts[outcome] += 1
    else:
        print(f"allocation {n}: {outcome}")
    n += 1
print(n - 1, counts["raised"])
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = tmp_path_factory.mktemp("memory")
    return [str(save_jpeg(root / f"{i}.jpg", 40 + 7 * i, 60 - 5 * i, seed=i)) for i in range(7)]


def preloaded():
    """The preloaded library that makes allocations fail, which is built beside mkjpeg."""
    tool = os.environ.get("FEEDMILL_MKJPEG")
    library = Path(tool or ".").absolute().parent / "libfail_allocations.so"
    if not tool or not library.exists():
        skip("FEEDMILL_MKJPEG does not name a tool that libfail_allocations.so stands beside")
    return str(library)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "caller"), [
    *((source, "module") for source in ("files", "bytes", "rows", "alloc", "cache")),
    *((source, "python") for source in ("bytes", "rows", "alloc")),
])
def test_each_failed_allocation_is_an_exception(paths, source, caller):
    environment = {**os.environ, "LD_PRELOAD": preloaded()}
    if caller == "python":
        environment["PYTHONMALLOC"] = "malloc"
    out = run_script(SCRIPT, source, ",".join(CALLERS[caller]), *paths, env=environment)
    *wrong, counts = out.splitlines()
    n_places, n_raised = map(int, counts.split())
    print(f"{source}, {caller}: {n_places} allocations, {n_raised} of which raised")
    assert not wrong, "\n".join(wrong)
    assert n_places > 20 and n_raised > 5
