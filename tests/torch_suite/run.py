"""Runs PyTorch's own tests of its DataLoader with feedmill's in place of it.

    python tests/torch_suite/run.py [--file FILE | --url URL | --suite NAME] [NAME ...]

The tests are test/test_dataloader.py of PyTorch's source. It is not part of this project: it comes
from the source package "pytorch" of the mirrors that apt is set up for (bookworm has 1.13), of
another of their releases (--suite trixie: 2.6), or from --file or --url: the file itself, or an
archive of PyTorch's source. One edit adapts it: a name at its top that the installed torch no
longer has skips the tests that use it. What is fetched, and the packages that the tests need
besides (expecttest, psutil, dill), goes to build/torch-suite.

Each test runs with torch's own class, and with feedmill's as replace/sitecustomize.py puts it
everywhere. Where the outcomes differ, both sides run the test again, up to three times. A test
whose outcome changes from one run to the next proves nothing; it is named, but not counted.

Exit status: 0 the same outcomes; 1 not, and the summary lists the tests with both outcomes and
what went wrong; 2 the comparison did not come to its end. NAMEs (TestDataLoader, or
TestDataLoader.test_len) restrict it to those. build/torch-suite/outcomes.json keeps the outcomes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fetch import adapt, fetch

HERE = Path(__file__).resolve().parent
WORK = HERE.parents[1] / "build" / "torch-suite"
SIDES = ("torch", "feedmill")
_PACKAGES = ("expecttest", "psutil", "dill")
_START_S = 300  # for the import of torch on a busy machine
_EXIT_S = 30  # from the end of the last test to the end of the process
_N_AGAIN = 3


@dataclass(frozen=True)
class Outcome:
    word: str  # "passed", "failed", "error", "skipped", "timeout", "crashed", ...
    text: str = ""


class Runner:
    """Runs tests in processes of their own, none of which may hang.

    Args:
        test_s: the longest that a test may take.
        end_s: time.monotonic() when all must be over.
        module: the name of the file with the tests, without ".py".
        work: the folder with that file, and for the results.
        replace: the folder with the sitecustomize.py that puts feedmill's class in place.
        packages: the folder of packages that the tests need.
        checked: the names that worker.py checks, as "MODULE.CLASS".
    """

    def __init__(
        self, test_s: float, end_s: float, *, module: str = "test_dataloader", work: Path = WORK,
        replace: Path = HERE / "replace", packages: Path = WORK / "packages",
        checked: tuple[str, ...] = ("test_dataloader.DataLoader", "torch.utils.data.DataLoader"),
    ) -> None:
        self._module, self._work = module, work
        self._replace, self._packages, self._checked = replace, packages, checked
        self._test_s = test_s
        self._end_s = end_s
        self._stopped = False

    def stop(self) -> None:
        """Has runs in other threads end soon."""
        self._stopped = True

    def run(self, side: str, names: list[str]) -> dict[str, Outcome]:
        """Runs tests in one process, and in further ones after a test that ended it."""
        outcomes: dict[str, Outcome] = {}
        while len(outcomes) < len(names):
            todo = [name for name in names if name not in outcomes]
            outcomes.update(self._run_process(side, todo))
        return outcomes

    def list_tests(self) -> list[str]:
        lines, why, log = self._follow("torch", ["list"], [])
        if why or not lines:
            raise SystemExit(f"the test file can't be loaded ({why or 'no tests'}):\n{_tail(log)}")
        return [name for _, name in lines]

    def _run_process(self, side: str, names: list[str]) -> dict[str, Outcome]:
        lines, why, log = self._follow(side, ["run", side], names)
        done = {name: Outcome(word, *text) for word, name, *text in lines if word != "started"}
        started = [name for word, name, *_ in lines if word == "started"]
        if not started:
            raise SystemExit(f"no test could be started with {side}'s DataLoader:\n{_tail(log)}")
        if started[-1] not in done:
            done[started[-1]] = Outcome(why or "vanished", _tail(log))
        elif why:
            done[started[-1]] = Outcome(f"{why} at exit", _tail(log))
        elif len(done) < len(names):
            raise SystemExit(f"the process stopped before {names[len(done)]}:\n{_tail(log)}")
        return done

    def _follow(self, side: str, command: list[str], names: list[str]) -> tuple[list, str, Path]:
        """Starts a process and waits until it ended, or ends it.

        Returns:
            (the lines that it noted, what ended it or "", the file with what it printed)
        """
        results = self._work / f"results-{side}.jsonl"
        log = self._work / f"printed-{side}.txt"
        results.write_text("")
        with log.open("w") as printed:
            process = subprocess.Popen(
                [sys.executable, HERE / "worker.py", *command, results, *names],
                cwd=self._work, env=self._environment(side), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            )
        try:
            why = self._wait(process, results, n_last=2 * len(names))
        finally:
            # The processes that tests left behind, too. The group is this process's own, and its
            # number stays taken until the wait.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return [json.loads(line) for line in results.read_text().splitlines()], why, log

    def _environment(self, side: str) -> dict[str, str]:
        outside = os.environ.get("PYTHONPATH", "").split(":")
        own = [str(Path(one).resolve()) for one in outside if one]
        replace = [self._replace] if side == "feedmill" else []
        path = [*replace, *own, self._work, HERE, self._packages]
        return {
            **os.environ, "PYTHONPATH": ":".join(map(str, path)),
            "SUITE_MODULE": self._module, "SUITE_CHECKED": " ".join(self._checked),
        }

    def _wait(self, process: subprocess.Popen, results: Path, n_last: int) -> str:
        n_lines, since_s = 0, time.monotonic()
        while True:
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                how = "exit status" if ended.si_code == os.CLD_EXITED else "signal"
                return f"crashed ({how} {ended.si_status})" if ended.si_status else ""
            time.sleep(0.1)
            now_s = time.monotonic()
            if now_s > self._end_s or self._stopped:
                raise SystemExit(
                    f"the time is over; --minutes gives more. The latest: {_tail(results)[-100:]}"
                )
            n_before, n_lines = n_lines, results.read_text().count("\n")
            if n_lines != n_before:
                since_s = now_s
            limit_s = self._test_s if n_lines else _START_S
            if n_lines == n_last:
                limit_s = _EXIT_S
            if now_s - since_s > limit_s:
                return "timeout"


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]


# ---- preparing -----------------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> None:
    """Puts the packages that the tests need, and the adapted test file, into WORK."""
    target = WORK / "packages"
    if not all((target / name).exists() for name in _PACKAGES):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--no-deps", "--upgrade", "--target", target, *_PACKAGES],
            check=True, timeout=300,
        )
    sys.path.append(str(target))  # torch.testing, which adapt() looks into, needs them
    text, edits = adapt(fetch(WORK, options.file, options.url, options.suite))
    (WORK / "test_dataloader.py").write_text(text)
    for edit in edits:
        print(f"edited: {edit}")


# ---- comparing -----------------------------------------------------------------------------------


def run_both(runner: Runner, names: list[str]) -> dict[str, dict[str, list[Outcome]]]:
    """side -> test -> its outcomes: one, or where the sides differ, one for each run."""
    outcomes: dict[str, dict[str, list[Outcome]]] = {side: {name: [] for name in names}
                                                     for side in SIDES}
    todo = names
    for _ in range(1 + _N_AGAIN):
        for side, found in _at_once(runner, todo).items():
            for name, outcome in found.items():
                outcomes[side][name].append(outcome)
        todo = [name for name in names if not _overlap(outcomes, name)]
        if not todo:
            break
        print(f"differing for now: {', '.join(todo)}", flush=True)
    return outcomes


def _at_once(runner: Runner, names: list[str]) -> dict[str, dict[str, Outcome]]:
    """One run of both sides, at the same time: tests wait a lot, and 2 cores are enough."""
    with ThreadPoolExecutor(len(SIDES)) as pool:
        runs = {side: pool.submit(runner.run, side, names) for side in SIDES}
        try:
            return {side: run.result() for side, run in runs.items()}
        except BaseException:
            runner.stop()
            raise


def _words(outcomes: dict, side: str, name: str) -> list[str]:
    return [outcome.word for outcome in outcomes[side][name]]


def _overlap(outcomes: dict, name: str) -> bool:
    """Whether the sides had an outcome in common."""
    return not set(_words(outcomes, "torch", name)).isdisjoint(_words(outcomes, "feedmill", name))


def report(
    outcomes: dict[str, dict[str, list[Outcome]]], expected: dict[str, str] | None = None
) -> int:
    """Prints the comparison; returns the exit status.

    Args:
        expected: pattern of tests (as in fnmatch) -> why they differ. Others must not.
    """
    expected = expected or {}
    names = list(outcomes["torch"])
    listed: list[str] = []
    changing = [
        name for name in names if any(len(set(_words(outcomes, side, name))) > 1 for side in SIDES)
    ]
    different = [name for name in names if name not in changing and not _overlap(outcomes, name)]
    for name in changing:
        runs = "; ".join(f"{side}: {', '.join(_words(outcomes, side, name))}" for side in SIDES)
        print(f"\nchanges from run to run, not counted: {name}\n  {runs}")
    for pattern, why in expected.items():
        found = [name for name in different if fnmatchcase(name, pattern)]
        different = [name for name in different if name not in found]
        listed += found
        if found:
            print(f"\nas listed, {len(found)}: {pattern}: {why}")
        elif not any(fnmatchcase(name, pattern) for name in changing):
            print(f"\nlisted, but nothing differs any more: {pattern}: {why}")
    for name in different:
        print(f"\ndifferent: {name}")
        for side in SIDES:
            outcome = outcomes[side][name][-1]
            text = "".join(f"\n      {line}" for line in outcome.text.splitlines())
            print(f"  with {side}'s DataLoader: {outcome.word}{text}")
    same = [name for name in names if name not in {*changing, *different, *listed}]
    counts = Counter(_words(outcomes, "torch", name)[0] for name in same)
    print(f"\n{len(same)} tests with the same outcome ({_counts(counts)}), {len(different)} with "
          f"different ones, {len(listed)} whose difference is listed, {len(changing)} that change from run to run")
    return 1 if different else 0


def _counts(counts: Counter) -> str:
    return ", ".join(f"{n} {word}" for word, n in counts.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", type=Path, help="test_dataloader.py, or an archive with it")
    source.add_argument("--url", help="where to get one of these")
    source.add_argument("--suite", help="the release whose source package to take")
    parser.add_argument("--minutes", type=float, default=20, help="for everything (default 20)")
    parser.add_argument("--test-seconds", type=float, default=300, help="a test (default 300)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="classes or tests, default all")
    options = parser.parse_args()
    runner = Runner(options.test_seconds, time.monotonic() + 60 * options.minutes)
    WORK.mkdir(parents=True, exist_ok=True)
    prepare(options)
    names = runner.list_tests()
    if options.names:
        names = [n for n in names if n in options.names or n.partition(".")[0] in options.names]
        if not names:
            raise SystemExit(f"the test file has none of {', '.join(options.names)}")
    outcomes = run_both(runner, names)
    (WORK / "outcomes.json").write_text(
        json.dumps({side: {name: [vars(one) for one in runs] for name, runs in tests.items()}
                    for side, tests in outcomes.items()}, indent=1)
    )
    return report(outcomes)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SystemExit, subprocess.SubprocessError, OSError) as error:
        if isinstance(error, SystemExit) and (error.code is None or type(error.code) is int):
            raise
        print(f"torch_suite: {error}", file=sys.stderr)
        sys.exit(2)
