"""Imported at its start by every Python process below ``feedmill run``, through PYTHONPATH.

It waits for torch to be imported, and otherwise leaves the process as it found it: the folder goes
from sys.path, and the sitecustomize module that would have been imported instead is imported.
"""

import os
import sys

# Each process would pay for typing, and the script find it imported already.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Finder:
    """Finds torch and feedmill where the other finders do, and acts when they are imported."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        if name not in ("torch", "feedmill"):
            return None
        spec = _find(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _act_after(spec.loader, name)
        return spec


def _find(name: str, path: "Any", target: "Any") -> "ModuleSpec | None":
    for finder in list(sys.meta_path):
        if finder is not _Finder and hasattr(finder, "find_spec"):
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    if name != "feedmill":
        return None
    # The package may have been found in the current folder, which is not the script's.
    from importlib.util import spec_from_file_location

    package = os.path.dirname(os.path.dirname(_HERE))
    return spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )


def _act_after(loader: "Any", name: str) -> None:
    execute = loader.exec_module

    def exec_module(module: "ModuleType") -> "Any":
        if module.__name__ != name:  # some loaders are there for several modules
            return execute(module)
        vars(loader).pop("exec_module", None)  # the class's own comes to light again
        execute(module)
        _imported(name)

    loader.exec_module = exec_module


def _imported(name: str) -> None:
    try:
        if name == "torch":
            # Comes here again. Where it is feedmill that imports torch, it goes on later.
            import feedmill  # noqa: F401
        else:
            from feedmill.cli.injected import install

            install()
    except Exception as error:
        sys.stderr.write(
            f"feedmill run: torch's DataLoader stays as it is in process {os.getpid()}: "
            f"{type(error).__name__}: {error}\n"
        )


if "FEEDMILL_RUN" in os.environ:
    sys.meta_path.insert(0, _Finder)
    if "torch" in sys.modules:  # by a .pth file
        _imported("torch")
sys.path[:] = [_folder for _folder in sys.path if _folder != _HERE]
del sys.modules["sitecustomize"]
# Where there is none, this module's import fails, as it would have without it, and Python goes on.
import sitecustomize  # noqa: E402, F401
