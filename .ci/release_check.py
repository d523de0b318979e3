#!/usr/bin/env python3
"""Checks what would be released: versions, metadata, and that wheel and sdist install and work.

    .ci/release_check.py [--dist build/release]

Looks at version.h and CHANGELOG.md, builds the wheels twice (equal bytes), builds the sdist, and
has twine look over both. Then installs the wheel, and a build of the sdist, each into a new
environment that sees the torch of .venv, away from the sources, and runs feedmill's command line
there. `make release-check` runs it behind lint and docs. Needs what `make wheels` needs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ["build==1.6.1", "twine==7.0.0"]
# Files that a build from the sdist needs, and those that a user looks for.
IN_SDIST = [
    "CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "include/feedmill/feedmill.h",
    "loader/pipeline", "pytorch_ext/csrc", "pytorch_ext/feedmill/loader.py",
]
IN_WHEEL = ["feedmill/py.typed", "feedmill/_native.pyi", "feedmill/_native.abi3.so"]
# Writes photographs, loads them natively and on torch's path, and compares the batches.
TRIAL = """
import sys, tempfile
import feedmill, torch
from feedmill.cli.made_images import make_images
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from torchvision_cpu import torchvision

assert str(Path(sys.prefix).resolve()) in str(Path(feedmill.__file__).resolve()), feedmill.__file__
T = torchvision.transforms
compose = T.Compose([T.Resize(80), T.CenterCrop(64), T.ToTensor(), T.Normalize([0.5], [0.2])])

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder), 2, 4)
        dataset = torchvision.datasets.ImageFolder(folder, compose)
        wanted = list(torch.utils.data.DataLoader(dataset, 3))
        assert len(wanted) == 3
        for native in ("require", "off"):
            for workers in (0, 2):
                batches = feedmill.DataLoader(dataset, 3, num_workers=workers, native=native)
                for (images, targets), batch in zip(batches, wanted, strict=True):
                    assert torch.equal(images, batch[0]) and torch.equal(targets, batch[1])
    print("feedmill", feedmill.__version__, "works with torch", torch.__version__)
"""


def say(text: str) -> None:
    print(f"release-check: {text}", flush=True)


def fail(text: str) -> None:
    sys.exit(f"release-check: {text}")


def run(*command: object, **options: object) -> str:
    """What a command said. Prints that and ends the check if the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode:
        fail(f"failed with {done.returncode}: {' '.join(words)}\n{done.stdout}")
    return done.stdout


def pip(python: Path, *words: object) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "-q", *words)


def check_version() -> str:
    """The version; CHANGELOG.md must begin with it, and the three numbers must say the same."""
    header = (ROOT / "include/feedmill/version.h").read_text()
    version = re.search(r'FM_VERSION_STRING "([^"]+)"', header)[1]
    numbers = re.findall(r"FM_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    if ".".join(numbers) != version:
        fail(f"include/feedmill/version.h says both {version} and {'.'.join(numbers)}")
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest, date = re.search(r"^## (\S+) ?(.*)", changes, re.MULTILINE).groups()
    if newest != version:
        fail(f"CHANGELOG.md begins with {newest}, but include/feedmill/version.h says {version}")
    say(f"version {version}")
    if date == "(unreleased)":
        say("CHANGELOG.md says that it is unreleased: put the date there before it is released")
    return version


def make_environment(folder: Path, torch_from: Path) -> Path:
    """The Python of a new environment that sees the packages of another, but not its feedmill."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    seen = run(torch_from, "-c", "import sys\nprint(*(p for p in sys.path if 'packages' in p))")
    mirror = folder / "seen"
    mirror.mkdir()
    for packages in map(Path, seen.split()):
        for path in packages.iterdir():
            # As in sys.path, the first folder that has a name counts.
            taken = os.path.lexists(mirror / path.name)
            if "feedmill" not in path.name and path.suffix != ".pth" and not taken:
                (mirror / path.name).symlink_to(path)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "torch.pth").write_text(f"{mirror}\n")
    return python


def try_installed(python: Path, what: Path) -> None:
    """Installs a wheel, and uses it from an empty folder, without the sources on any path."""
    pip(python, "install", "--no-deps", what)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.py"
        trial.write_text(TRIAL)
        support = ROOT / "tests" / "support"
        said = run(python, "trial.py", support, cwd=folder, env=environment).splitlines()[-1]
        run(python, "-m", "feedmill", "doctor", cwd=folder, env=environment)
        run(python.parent / "feedmill", "--help", cwd=folder, env=environment)
    say(f"{what.name}: {said}")


def check_contents(wheel: Path, sdist: Path) -> None:
    """What must be inside is inside, and nothing that the build left behind."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = [name for name in IN_WHEEL if name not in names]
    with tarfile.open(sdist) as archive:
        members = [name.partition("/")[2] for name in archive.getnames()]
    missing += [f"{name} (sdist)" for name in IN_SDIST
                if not any(member == name or member.startswith(f"{name}/") for member in members)]
    stray = [name for name in names + members
             if name.endswith((".pyc", ".o")) or (name in members and ".so" in name)]
    if missing or stray:
        fail(f"missing: {missing}; {len(stray)} should not be there: {stray[:5]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "build" / "release",
                        help="where wheels and sdist are put; a folder that does not exist, or the "
                        "default, which is made anew")
    args = parser.parse_args()
    version = check_version()
    dist = args.dist.resolve()
    if dist == parser.get_default("dist"):
        shutil.rmtree(dist, ignore_errors=True)
    elif dist.exists():
        parser.error(f"{dist} exists")
    work = ROOT / "build" / "release-work"
    shutil.rmtree(work, ignore_errors=True)

    say("building the wheels, twice")
    run(sys.executable, ROOT / ".ci/wheels/build_wheels.py", "--out", dist, "--check-reproducible")
    venv.create(work / "tools", with_pip=True)
    tools = work / "tools" / "bin" / "python"
    pip(tools, "install", *TOOLS)
    say("building the sdist, and a wheel of it")
    run(tools, "-m", "build", "--sdist", "--outdir", dist, ROOT)
    (sdist,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("feedmill-*.whl")
    check_contents(wheel, sdist)
    pip(tools, "wheel", "--no-deps", "-w", work / "built", sdist)
    (built,) = (work / "built").glob("*.whl")
    say(run(tools, "-m", "twine", "check", "--strict", *sorted(dist.iterdir())).strip())

    torch_from = ROOT / ".venv" / "bin" / "python"
    try_installed(make_environment(work / "from-wheel", torch_from), wheel)
    try_installed(make_environment(work / "from-sdist", torch_from), built)
    n_bytes = {path.name: f"{path.stat().st_size:,} bytes" for path in sorted(dist.iterdir())}
    say(f"{version} can be released: {n_bytes}")


if __name__ == "__main__":
    main()
