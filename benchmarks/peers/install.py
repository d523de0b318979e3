"""A virtual environment for each loader, under build/peers-venv. It sees the packages of the
environment that runs this (torch, numpy, Pillow), and does not change them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pathlib
import subprocess
import sys
from collections.abc import Callable

KEPT = ("torch", "torchvision", "numpy", "pillow")


class Unavailable(Exception):
    """A loader that can't be used here; the text says why."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a loader is installed.

    module: must be importable after the installation.
    steps: arguments of `pip install`, one call each.
    system: Debian packages that its build or its import needs.
    """

    module: str
    steps: tuple[tuple[str, ...], ...]
    system: tuple[str, ...] = ()

    def hint(self) -> str:
        return f"; it needs: apt-get install {' '.join(self.system)}" if self.system else ""


def dlio(source: str) -> Recipe:
    """The recipe of dlio_benchmark.

    source: what pip installs it from. Its release on PyPI, 2.0.0, needs TensorFlow and takes the
        intended for the measured time of a computation.
    """
    # Its package names TensorFlow and DALI, which only other workloads import.
    needed = ("hydra-core==1.3.2", "omegaconf", "mpi4py", "mpich", "pandas", "psutil", "h5py",
              "pydftracer>=2.0.2")
    return Recipe("dlio_benchmark.main", (("--no-deps", source), needed))


RECIPES = {
    "opencv": Recipe("cv2", (("opencv-python-headless",),)),
    "dali": Recipe("nvidia.dali", (("nvidia-dali-cuda130",),)),
    "turboloader": Recipe("turboloader", (("turboloader",),)),
    # Any of FFmpeg 4 to 9 will do.
    "spdl": Recipe(
        "spdl.io",
        (("spdl",),),
        ("libavcodec59", "libavformat59", "libavfilter8", "libavdevice59", "libswscale6"),
    ),
    "s3torchconnector": Recipe("s3torchconnector", (("s3torchconnector",),)),
    "obstore": Recipe("obstore", (("obstore",),)),
    # Its raw datasets list a bucket by fsspec and read it by obstore.
    "litdata": Recipe("litdata", (("litdata", "zstd", "s3fs", "obstore"),)),
    "webdataset": Recipe("webdataset", (("webdataset",),), ("curl",)),
    # Its package names opencv-python, which needs a display's libraries, and pytorch_pfn_extras,
    # which only the GPU path imports.
    "ffcv": Recipe(
        "ffcv",
        (
            ("--no-deps", "ffcv"),
            ("opencv-python-headless", "numba", "terminaltables", "fastargs", "assertpy", "tqdm",
             "psutil"),
        ),
        ("build-essential", "pkg-config", "libopencv-dev", "libturbojpeg0-dev"),
    ),
    "dlio": dlio("git+https://github.com/argonne-lcf/dlio_benchmark"
                 "@e1919d7b6ccffbe15143cd616517da9e5d7b26a7"),
}


def run(command: list[str], log: pathlib.Path) -> bool:
    with log.open("a") as out:
        print("+", *command, file=out, flush=True)
        return subprocess.run(command, stdout=out, stderr=out, check=False).returncode == 0


def make_environment(folder: pathlib.Path) -> pathlib.Path:
    """An empty environment that sees this one's packages; returns its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    seen = [p for p in sys.path if p.endswith("-packages")]
    (packages / "seen.pth").write_text("\n".join(seen) + "\n")
    kept = [f"{name}=={importlib.metadata.version(name)}" for name in KEPT]
    (folder / "constraints").write_text("\n".join(kept) + "\n")
    return python


def install(name: str, root: pathlib.Path, show: Callable[[str], None],
            recipe: Recipe | None = None) -> str:
    """The interpreter with this loader, which is installed if necessary. Raises Unavailable.

    recipe: used in place of RECIPES[name].
    """
    recipe = recipe or RECIPES.get(name)
    if recipe is None:  # part of this environment
        return sys.executable
    root.mkdir(parents=True, exist_ok=True)
    folder, log = root / name, root / f"{name}.log"
    python = make_environment(folder)
    stamp, steps = folder / "installed", repr(recipe.steps)
    if not stamp.exists() or stamp.read_text() != steps:
        show(f"installing {name}")
        log.unlink(missing_ok=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
        pip += ["-c", str(folder / "constraints")]
        for step in recipe.steps:
            if not run([*pip, *step], log):
                raise Unavailable(f"pip install failed, see {log.name}{recipe.hint()}")
        stamp.write_text(steps)
    if not run([str(python), "-c", f"import {recipe.module}"], log):
        raise Unavailable(f"import {recipe.module} failed, see {log.name}{recipe.hint()}")
    return str(python)
