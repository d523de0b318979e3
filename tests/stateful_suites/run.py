"""Runs torchdata's tests of its StatefulDataLoader, and Accelerate's tests of its loaders, with
feedmill's DataLoader in place of StatefulDataLoader.

    make test-stateful-suites
    build/frameworks-venv/bin/python tests/stateful_suites/run.py [--suite NAME] [TEST ...]

The tests are not part of this project. They come from mirrors in the folder FEEDMILL_PUBLIC_REPOS,
or by https from GitHub, at the commits below (tests/public_scripts/trees.py says how); where they
can't be had, a message says so, and the exit status is 0 unless FEEDMILL_NO_SKIP=1.

Each test runs with torchdata's class and with feedmill's, as tests/torch_suite/run.py does it.
expected.txt lists the tests whose outcomes differ, and why; each other difference is an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "torch_suite"), str(HERE.parent / "public_scripts")]

import trees  # noqa: E402

# It has the name of this file.
_spec = importlib.util.spec_from_file_location("torch_suite", HERE.parent / "torch_suite/run.py")
torch_suite = sys.modules["torch_suite"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(torch_suite)

WORK = HERE.parents[1] / "build" / "stateful-suites"
_PACKAGES = ("expecttest", "psutil", "dill", "parameterized")


@dataclass(frozen=True)
class Suite:
    """A file of tests.

    Attributes:
        only: the beginnings of the names of the tests that concern a loader.
    """

    name: str
    repository: str
    commit: str
    path: str
    only: tuple[str, ...] = ("",)


_TORCHDATA = ("pytorch/data", "088e43477c1c750c26ea6c1466b708c45cc8ba30")
_ACCELERATE = ("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
SUITES = (
    # Those of an IterableDataset alone are left out: a state holds no position in it.
    Suite(
        "state_dict", *_TORCHDATA, "test/stateful_dataloader/test_state_dict.py",
        ("TestStatefulDataLoaderMap", "TestStatefulSampler", "TestSnapshotZero_shard2.test_map",
         "TestSnapshotEnd_shard2.test_map", "TestNumWorkersMismatch", "TestConcurrentDataLoaders",
         "TestJsonSerDe_shard3.test_json_serde_single_process_map", "TestInitialState",
         "TestJsonSerDe_shard3.test_json_serde_multi_process_map", "TestMultiEpochSDL",
         "TestEndOfEpochBehavior", "TestNotStatefulSamplerSDL",
         "TestOutOfOrderWithCheckpointing.test_out_of_order_index_ds"),
    ),
    Suite("sampler", *_TORCHDATA, "test/stateful_dataloader/test_sampler.py"),
    # Its largest classes are PyTorch's tests of its own DataLoader, which tests/torch_suite runs.
    Suite(
        "dataloader", *_TORCHDATA, "test/stateful_dataloader/test_dataloader.py",
        ("TestDictDataLoader", "TestStringDataLoader", "TestNamedTuple", "TestCustomPinFn",
         "TestConvAfterFork", "TestIndividualWorker"),
    ),
    Suite("accelerate", *_ACCELERATE, "tests/test_data_loader.py", ("StatefulDataLoaderTester",)),
)


def expected_of(suite: Suite) -> dict[str, str]:
    """Pattern -> reason, of the lines "SUITE PATTERN: REASON" in expected.txt."""
    found = {}
    for line in (HERE / "expected.txt").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if name == suite.name:
            pattern, _, why = rest.partition(": ")
            found[pattern] = why
    return found


def prepare(suite: Suite) -> Path:
    """The folder with the suite's file. Raises trees.MissingError."""
    tree = trees.tree(WORK, [suite.repository], suite.commit, [suite.path])
    target = WORK / "packages"
    if not all((target / name).exists() for name in _PACKAGES):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--no-deps", "--upgrade", "--target", target, *_PACKAGES],
            check=True, timeout=300,
        )
    work = WORK / suite.name
    work.mkdir(parents=True, exist_ok=True)
    module = f"suite_{Path(suite.path).stem}.py"
    (work / module).write_text((tree / suite.path).read_text())
    return work


def run(suite: Suite, options: argparse.Namespace) -> int:
    try:
        work = prepare(suite)
    except trees.MissingError as error:
        print(f"skipped: {suite.name}: {error}")
        return 1 if os.environ.get("FEEDMILL_NO_SKIP") == "1" else 0
    runner = torch_suite.Runner(
        options.test_seconds, time.monotonic() + 60 * options.minutes,
        module=f"suite_{Path(suite.path).stem}", work=work, replace=HERE / "replace",
        packages=WORK / "packages", checked=("torchdata.stateful_dataloader.StatefulDataLoader",),
    )
    names = [name for name in runner.list_tests() if name.startswith(suite.only)]
    if options.names:
        names = [n for n in names if n in options.names or n.partition(".")[0] in options.names]
    if not names:
        return 0
    print(f"== {suite.name}: {len(names)} tests", flush=True)
    return torch_suite.report(torch_suite.run_both(runner, names), expected_of(suite))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=[suite.name for suite in SUITES], help="default all")
    parser.add_argument("--minutes", type=float, default=30, help="for a suite (default 30)")
    parser.add_argument("--test-seconds", type=float, default=300, help="a test (default 300)")
    parser.add_argument("names", nargs="*", metavar="TEST", help="classes or tests, default all")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    chosen = [suite for suite in SUITES if options.suite in (None, suite.name)]
    return max([run(suite, options) for suite in chosen])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SystemExit, subprocess.SubprocessError, OSError) as error:
        if isinstance(error, SystemExit) and (error.code is None or type(error.code) is int):
            raise
        print(f"stateful_suites: {error}", file=sys.stderr)
        sys.exit(2)
