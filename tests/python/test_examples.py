"""The scripts in pytorch_ext/examples, unchanged, run in processes of their own on small data."""

import csv
import math
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import feedmill
import helpers
import numpy as np
import pytest
import torch
from PIL import Image

HERE = Path(__file__).parent
PACKAGE = Path(feedmill.__file__).parents[1]
EXAMPLES = HERE.parents[1] / "pytorch_ext" / "examples"
SCRIPTS = ("imagenet_resnet.py", "cifar10_classifier.py", "path_list.py")

OURS = "from feedmill import DataLoader"
CHANGED = OURS + "  # the changed line; was: from torch.utils.data import DataLoader"
THEIRS = "from torch.utils.data import DataLoader"
# Lines of a script that call what only feedmill's loader has; they are removed for torch's.
ASKING = re.compile(r" *print\(\w+\.(report|explain)\(\)\)")

# Imports torchvision as the tests do, seeds torch if the script does not, and makes CIFAR10 accept
# generated files in spite of their checksums. The classes are not replaced.
RUNNER = """
import os, runpy, sys
sys.path.insert(0, os.environ["FEEDMILL_TESTS"])
import conftest, torch
from torchvision.datasets import cifar
cifar.check_integrity = lambda path, md5=None: os.path.isfile(path)
torch.manual_seed(0)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(script, *arguments, folder, torchrun=0, restarts=0):
    """Starts a script in a folder; with torchrun=N under torchrun with N processes, which it starts
    again if one of them fails, so many times."""
    command = [sys.executable, "-c", RUNNER, script, *arguments]
    if torchrun:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        command = [*launch, "--nproc-per-node", torchrun, "--max-restarts", restarts,
                   *command]
    outside = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    environment |= {"PYTHONPATH": str(PACKAGE), "FEEDMILL_TESTS": str(HERE), "OMP_NUM_THREADS": "1"}
    if restarts:
        # Otherwise torch 2.13's agent keeps the failed attempt's store for the next one, whose
        # processes then may meet keys of processes that are gone.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    folder.mkdir(exist_ok=True)
    return subprocess.Popen([str(word) for word in command], cwd=folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process):
    """Waits for a process and returns its output. It must exit with 0."""
    try:
        out, errors = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends its processes
        pytest.fail(f"the process hangs; so far: {process.communicate(timeout=600)}")
    assert process.returncode == 0, f"exit status {process.returncode}: {out}{errors}"
    return out


def torchs(name, folder):
    """A script with torch's import, and without the lines that call what only feedmill has."""
    lines = (EXAMPLES / name).read_text().splitlines(keepends=True)
    lines = [line.replace(CHANGED, THEIRS) for line in lines if not ASKING.match(line)]
    path = folder / name
    path.write_text("".join(lines))
    return path


def both(name, tmp_path, *arguments):
    """A script's output with feedmill's loader, and with torch's. Both run at the same time."""
    ours = start(EXAMPLES / name, *arguments, folder=tmp_path / "ours")
    theirs = start(torchs(name, tmp_path), *arguments, folder=tmp_path / "theirs")
    return finish(ours), finish(theirs)


def losses(text):
    """(text before the loss, loss) for each line with a loss. All losses must be finite."""
    found = [(where, float(loss)) for where, loss in re.findall(r"(.*)Loss:? (\S+)", text, re.I)]
    assert found and all(math.isfinite(loss) for _, loss in found), text
    return found


def path_of(text):
    """The row "path" of the report in a script's output, which must have exactly one."""
    (path,) = re.findall(r"^ *path +(\w+)$", text, re.M)
    return path


# ---- made data -----------------------------------------------------------------------------------


def make_folder(root, save):
    """An ImageFolder of two classes, with 24 images to train on and 8 to validate with."""
    for part, n_images in (("train", 24), ("val", 8)):
        for i in range(n_images):
            path = root / part / f"class{i % 2}" / f"{i:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            save(path, i)
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    def save(path, i):
        helpers.save_jpeg(path, 40 + i, 60 - i, seed=i)

    return make_folder(tmp_path_factory.mktemp("photos"), save)


@pytest.fixture(scope="module")
def uniform_images(tmp_path_factory):
    """Images of one colour each, which random crops and flips do not change."""
    def save(path, i):
        Image.new("RGB", (40 + i, 60 - i), (10 * i, 250 - 9 * i, 37 * i % 256)).save(path)

    return make_folder(tmp_path_factory.mktemp("colours"), save)


def write_pickle(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value))


@pytest.fixture
def cifar10(tmp_path):
    """CIFAR-10's Python files, with 20 images in each batch."""
    random = np.random.default_rng(0)
    root = tmp_path / "data"
    files = root / "cifar-10-batches-py"
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        data = random.integers(0, 256, (20, 3 * 32 * 32), dtype=np.uint8)
        write_pickle(files / name, {"data": data, "labels": [i % 10 for i in range(20)]})
    write_pickle(files / "batches.meta", {"label_names": [f"class{i}" for i in range(10)]})
    return root


# ---- scripts on given data -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_one_line_is_changed(name):
    lines = (EXAMPLES / name).read_text().splitlines()
    assert [line for line in lines if "feedmill" in line and "import" in line] == [CHANGED]
    assert any(re.fullmatch(r" *print\(\w+\.report\(\)\)", line) for line in lines)


@pytest.mark.slow
def test_path_list_has_torchs_losses(photos, tmp_path):
    files = sorted((photos / "train").rglob("*.jpg"))
    with open(tmp_path / "train.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            (path.relative_to(photos), int(path.parent.name == "class1")) for path in files
        )
    ours, theirs = both("path_list.py", tmp_path, tmp_path / "train.csv", "--root", photos,
                        "--size", 24, "--batch-size", 8, "--epochs", 2)
    assert len(losses(ours)) == 6
    assert losses(ours) == losses(theirs)
    assert path_of(ours) == "native"
    assert ours.startswith("native path")


@pytest.mark.slow
def test_cifar10_has_torchs_losses(cifar10, tmp_path):
    ours, theirs = both("cifar10_classifier.py", tmp_path, "--data", cifar10, "--download",
                        "--epochs", 2, "--print-every", 5)
    assert len(losses(ours)) == 10
    assert losses(ours) == losses(theirs)
    accuracies = re.findall("Accuracy.*", ours)
    assert len(accuracies) == 11 and accuracies == re.findall("Accuracy.*", theirs)
    if path_of(ours) == "torch":
        assert re.search("fell back to torch: .*CIFAR10", ours)
    else:
        assert path_of(ours) == "native"


STEPS = ("--size", 32, "--batch-size", 4, "--accumulate", 4, "--print-freq", 1, "--workers", 2)
SMALL = "shufflenet_v2_x0_5"  # a fraction of a ResNet's time, most of all in bfloat16


@pytest.mark.slow
def test_imagenet_has_torchs_order_and_labels(uniform_images, tmp_path):
    ours, theirs = both("imagenet_resnet.py", tmp_path, uniform_images, *STEPS, "--epochs", 1,
                        "--arch", SMALL, "--amp", "--seed", 3)
    assert len(losses(ours)) == 6
    assert losses(ours) == losses(theirs)
    assert re.findall("Acc@1.*", ours) == re.findall("Acc@1.*", theirs) != []
    assert path_of(ours) == "native"


@pytest.mark.slow
def test_imagenet_resumes_from_a_checkpoint(photos, tmp_path):
    script = EXAMPLES / "imagenet_resnet.py"
    options = (photos, *STEPS, "--arch", SMALL, "--seed", 3)
    whole = start(script, *options, "--epochs", 2, folder=tmp_path / "whole")
    first = finish(start(script, *options, "--epochs", 1, folder=tmp_path / "parts"))
    second = finish(start(script, *options, "--epochs", 2, "--resume", "checkpoint.pth.tar",
                          folder=tmp_path / "parts"))
    whole = finish(whole)
    assert losses(first) + losses(second) == losses(whole)
    assert re.findall("Acc@1.*", first + second) == re.findall("Acc@1.*", whole)
    assert path_of(second) == "native"
    states = [torch.load(tmp_path / run / "checkpoint.pth.tar", weights_only=True)
              for run in ("whole", "parts")]
    for name, values in states[0]["model"].items():
        assert torch.equal(values, states[1]["model"][name]), name


@pytest.mark.slow
def test_imagenet_under_torchrun(photos, tmp_path):
    out = finish(start(EXAMPLES / "imagenet_resnet.py", photos, *STEPS, "--epochs", 1,
                       "--seed", 3, folder=tmp_path, torchrun=2))
    # Each of two processes has half of the 24 images; only rank 0 prints.
    assert [where for where, _ in losses(out)] == [f"Epoch [0][{i}/3] " for i in range(3)]
    assert out.count("Acc@1") == out.count("training done") == 1
    assert path_of(out) == "native"
    assert re.search(r"delivered +12 samples in 3 batches natively", out)
    assert (tmp_path / "checkpoint.pth.tar").exists()


# ---- scripts on generated data -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["cifar10_classifier.py", "tensors_in_ram.py", "opencv_dataset.py"]
)
@pytest.mark.slow
def test_smoke(name, tmp_path):
    process = start(EXAMPLES / name, "--smoke", folder=tmp_path)
    out = finish(process)
    assert losses(out)
    assert path_of(out) == "native"
    if name == "opencv_dataset.py":
        line = r"^step 16 .* images/s, .* ms per step, waited \d+%, cache hits 50%"
        assert re.search(line, out, re.M)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_trainings_at_once(tmp_path, monkeypatch):
    # Its child processes import torchvision themselves.
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(HERE.parent / 'support')!r})\nimport torchvision_cpu\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", f"{tmp_path}{os.pathsep}{PACKAGE}")
    out = finish(start(EXAMPLES / "two_cifar.py", "--smoke", folder=tmp_path))
    for number in (1, 2):
        lines = [line[4:] for line in out.splitlines() if line.startswith(f"{number} | ")]
        assert losses("\n".join(lines)) and path_of("\n".join(lines)) == "native"
        assert "Finished Training" in lines
