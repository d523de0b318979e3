"""Messages where torch or NumPy is not installed."""

import subprocess
import sys
from pathlib import Path

import feedmill
import pytest
from feedmill.system.requirements import missing_package

PACKAGE = Path(feedmill.__file__).parents[1]


def without(package, code):
    """Runs code in a Python in which a package can't be imported; returns the finished process."""
    # A finder that raises what a missing package raises. None in sys.modules gives another text.
    hide = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
sys.path.insert(0, {str(PACKAGE)!r})
"""
    return subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True,
                          check=False)


@pytest.mark.parametrize("package, wanted", [("torch", "pip install 'torch>=2.4'"),
                                             ("numpy", "pip install numpy")])
def test_an_import(package, wanted):
    done = without(package, "from feedmill import DataLoader")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: feedmill needs {package}, which is not installed")
    assert wanted in last and sys.executable in last
    # Nothing is printed but the traceback of this one error.
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("words", [["demo"], ["doctor"], ["--help"]])
def test_the_command_line(words):
    done = without("torch", f"from feedmill.cli.cli import main; sys.exit(main({words!r}))")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "feedmill needs torch, which is not installed" in done.stderr


def test_what_does_without():
    done = without("torch", "from feedmill.cli.cli import main; main(['--version'])")
    assert done.returncode == 0 and feedmill.__version__ in done.stdout


def test_other_missing_modules_keep_their_error():
    assert missing_package(ModuleNotFoundError("No module named 'x'", name="x")) == ""
    assert missing_package(ModuleNotFoundError("text")) == ""
