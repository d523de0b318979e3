#!/usr/bin/env python3
"""Installs a wheel of feedmill where users would, and runs the tests against what was installed.

    tests/wheel/check_wheel.py [--wheel FILE] [--with "torch==2.9.1 torchvision==0.24.1"]
                               [--python PYTHON] [--suite trixie | --chroot FOLDER]
                               [--under no-uring] [--under no-shm] [--under read-only-home]

Makes a virtual environment, installs these packages and the wheel in it without building anything,
copies the tests that need neither sources nor built tools into a folder of their own, and runs
them there: no file of the repository is in reach of an import. In a chroot there must be no
compiler and no header of Python, as on most users' machines. Ends with the row for the table in
pytorch_ext/docs/compatibility.md; the exit status is pytest's, or 1.

With --suite, debootstrap makes the Debian system below build/wheel-test the first time; that and
--chroot need root. What is mounted in the chroot is gone when the program ends.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "build" / "wheel-test"
TEST_TOOLS = ["pytest", "pytest-xdist", "hypothesis", "tqdm", "pandas", "boto3", "moto[server]"]

# The tests that say whether a training's results, its script and its report are right. With --all,
# every file runs but NEED_SOURCES.
CHOSEN = {
    "parity": ["test_parity", "test_equality", "test_canary", "test_image_formats", "test_augment",
               "test_torchvision_v2", "test_draws", "test_order", "test_seeding"],
    "drop-in": ["test_options", "test_captures", "test_collate", "test_wrappers", "test_internals",
                "test_requirements", "test_deferred", "test_deferred_path",
                "test_deferred_operations", "test_deferred_tensors", "test_deferred_handover",
                "test_composed", "test_handover", "test_placing", "test_own_datasets",
                "test_seek_points", "test_several_files", "test_drawn_files", "test_own_transforms", "test_views_of_datasets", "test_folder_classes",
                "test_image_modes", "test_tables", "test_tensor_files"],
    "objects": ["test_remote_names", "test_remote_credentials", "test_remote_s3",
                "test_remote_packs"],
    "stalls": ["test_stats", "test_verdict", "test_watch", "test_demo"],
}
# These read the repository's documentation, examples or benchmarks, or the tests of the package's
# own structure, which the wheel does not change.
NEED_SOURCES = ["test_readme", "test_examples", "test_bench", "test_subpackages"]

# Prints what the environment has, as "name version" lines.
FACTS = """
import platform, sys
from importlib.metadata import version
print("Python", platform.python_version())
for name in ("torch", "torchvision", "pillow", "numpy"):
    try:
        print(name, version(name))
    except Exception:
        print(name, "none")
import feedmill
print("feedmill", feedmill.__version__)
print("folder", feedmill.__path__[0])
"""
SYSTEM = '. /etc/os-release; echo "$PRETTY_NAME"'
COMPILERS = """
for name in cc gcc c++ g++ clang clang++ tcc; do command -v $name; done
find /usr/include /usr/local/include -name Python.h 2>/dev/null
true
"""


def say(text: str) -> None:
    print(f"wheel: {text}", flush=True)


# ---- where it runs -------------------------------------------------------------------------------


class Here:
    """This system. Paths are its own."""

    root = Path("/")

    def run(self, *words: object, **options: object) -> subprocess.CompletedProcess:
        return subprocess.run([str(word) for word in words], text=True, check=False, **options)

    def inside(self, path: Path) -> Path:
        return path


class Chroot(Here):
    """A Debian system below a folder. Commands run with its /proc and /dev in a mount namespace of
    their own, so that nothing stays mounted. They get pip's and the proxies' variables, no others.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"):
            if Path("/", name).exists():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path("/", name), root / name)

    def run(self, *words: object, **options: object) -> subprocess.CompletedProcess:
        env = {name: value for name, value in os.environ.items()
               if name.startswith(("PIP_", "FEEDMILL_")) or name.lower().endswith("_proxy")}
        env |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        cwd = self.inside(Path(options.pop("cwd", self.root)))
        script = (f"root={shlex.quote(str(self.root))}; mount -t proc proc $root/proc && "
                  "mount --rbind /dev $root/dev && "
                  f"exec chroot $root /bin/sh -c 'cd {shlex.quote(str(cwd))} && exec \"$@\"' sh "
                  f"{shlex.join(map(str, words))}")
        return subprocess.run(["unshare", "--mount", "sh", "-c", script],
                              env=env, text=True, check=False, **options)

    def inside(self, path: Path) -> Path:
        return Path("/", path.relative_to(self.root))


def made_suite(suite: str) -> Path:
    """The folder of a Debian suite with Python; debootstrap makes it unless it is there."""
    folder = WORK / suite
    stamp = folder / "made-by-check_wheel"
    if not stamp.exists():
        say(f"making {folder} with debootstrap")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
             suite, str(folder)], check=False, stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"wheel: debootstrap failed with {done.returncode}")
        stamp.touch()
    return folder


# ---- steps ---------------------------------------------------------------------------------------


def newest_wheel() -> Path:
    found = sorted((ROOT / "dist").glob(f"feedmill-*_{os.uname().machine}.whl"),
                   key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit("wheel: dist has no wheel for this machine: run `make wheels`, or name one with "
                 "--wheel")
    return found[-1]


def copy_tests(folder: Path, chosen: list[str]) -> list[str]:
    """Copies the tests' files into a folder; returns the names of those to run."""
    folder.mkdir(parents=True)
    for name in ("python", "support"):
        shutil.copytree(ROOT / "tests" / name, folder / name,
                        ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    # The markers and limits of pyproject.toml, without its path of sources.
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -q -p no:cacheprovider\nfaulthandler_timeout = 1200\n"
        "markers =\n    slow: takes more than a few seconds\n    gpu: needs an NVIDIA GPU\n")
    every = sorted(path.stem for path in (folder / "python").glob("test_*.py"))
    if unknown := set(chosen + NEED_SOURCES) - set(every):
        sys.exit(f"wheel: there is no {', '.join(sorted(unknown))} in tests/python")
    return [f"python/{name}.py" for name in every
            if (name in chosen if chosen else name not in NEED_SOURCES)]


def environment(place: Here, folder: Path, python: str, packages: list[str], wheel: Path) -> Path:
    """A virtual environment with the packages and the wheel; returns its Python."""
    inner = place.inside(folder)
    py = inner / "bin" / "python"
    pip = [py, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-cache-dir"]
    if not os.path.lexists(folder / "bin" / "python"):
        must(place.run(python, "-m", "venv", inner), "the virtual environment")
    if packages:
        say(f"installing {' '.join(packages)}")
        must(place.run(*pip, "--only-binary=:all:", *packages, *TEST_TOOLS), "pip")
    copied = folder / wheel.name
    shutil.copy(wheel, copied)
    say(f"installing {wheel.name}")
    # Its dependencies are there: --no-deps would hide that one is missing.
    must(place.run(*pip, "--only-binary=:all:", "--force-reinstall", "--no-deps",
                   place.inside(copied)), "pip")
    must(place.run(*pip, "--only-binary=:all:", place.inside(copied)), "pip")
    return py


def must(done: subprocess.CompletedProcess, what: str) -> None:
    if done.returncode:
        sys.exit(f"wheel: {what} failed with {done.returncode}")


def facts_of(place: Here, py: Path, away: Path, venv: Path) -> dict[str, str]:
    """What was installed. Ends the program where the sources are imported, or there is a
    compiler."""
    done = place.run(py, "-c", FACTS, cwd=away, stdout=subprocess.PIPE)
    must(done, "the import of feedmill")
    facts = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    if not Path(facts["folder"]).is_relative_to(place.inside(venv)):
        sys.exit(f"wheel: feedmill was imported from {facts['folder']}, not the environment")
    done = place.run("sh", "-c", SYSTEM, stdout=subprocess.PIPE)
    facts["system"] = done.stdout.strip() or "unknown"
    tools = place.run("sh", "-c", COMPILERS, stdout=subprocess.PIPE).stdout.split()
    if tools and place.root != Path("/"):
        sys.exit(f"wheel: the chroot has {' '.join(tools)}: users have no compiler")
    return facts


def counted(result: Path) -> str:
    """How many tests passed, failed and were skipped, by pytest's file of results."""
    if not result.exists():
        return "did not run"
    (suite,) = ElementTree.parse(result).getroot().iter("testsuite")
    counts = {name: int(suite.get(name)) for name in ("failures", "errors", "skipped")}
    counts = {"passed": int(suite.get("tests")) - sum(counts.values())} | counts
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n or name == "passed")


def row(facts: dict[str, str], args: argparse.Namespace, result: str) -> str:
    """The line for the table in compatibility.md."""
    tests = " ".join(args.tests) or ("all" if args.all else ", ".join(CHOSEN))
    tests = ", ".join([tests, *args.under])
    cells = [datetime.date.today().isoformat(), facts["system"], facts["Python"], facts["torch"],
             facts["torchvision"], facts["pillow"], facts["numpy"], tests, result]
    return f"| {' | '.join(cells)} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="default: the newest in dist")
    parser.add_argument("--with", dest="packages", default="torch torchvision",
                        help='for pip (default: "torch torchvision"); "" with a complete --venv')
    parser.add_argument("--python", default="python3", help="where the place has it (python3)")
    parser.add_argument("--suite", help="a Debian suite, such as trixie")
    parser.add_argument("--chroot", type=Path, help="a folder with a Debian system")
    parser.add_argument("--venv", type=Path, help="made there unless it exists, and kept; with "
                        "--chroot or --suite a path below that folder")
    parser.add_argument("--under", action="append", default=[],
                        choices=["no-uring", "no-shm", "read-only-home"],
                        help="a condition of conditions.py for the tests")
    parser.add_argument("--all", action="store_true", help="all tests that can run so")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("tests", nargs="*", help="names of files in tests/python, without .py")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    wheel = args.wheel or newest_wheel()
    root = made_suite(args.suite) if args.suite else args.chroot
    place = Chroot(root.resolve()) if root else Here()
    chosen = args.tests or ([] if args.all else sum(CHOSEN.values(), []))
    with tempfile.TemporaryDirectory(
        prefix="check-wheel-", dir=place.root / "var/tmp" if root else None
    ) as made:
        folder = Path(made)
        away = folder / "tests"
        files = copy_tests(away, chosen)
        venv = folder / "venv"
        if args.venv:
            venv = place.root / args.venv.relative_to("/") if root else args.venv.resolve()
        py = environment(place, venv, args.python, shlex.split(args.packages), wheel)
        facts = facts_of(place, py, away, venv)
        say(f"running {len(files)} files of tests on {facts['system']}, torch {facts['torch']}")
        # No PYTHONPATH leads to the sources.
        command = ["env", "-u", "PYTHONPATH", py, "-m", "pytest", "-n", args.jobs, "--dist",
                   "worksteal", *files]
        if args.under:
            shutil.copy(HERE / "conditions.py", away)
            command = [py, "conditions.py", *args.under, "--", *command]
        done = place.run(*command, f"--junit-xml={place.inside(away)}/result.xml", cwd=away)
        print(row(facts, args, counted(away / "result.xml")))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
