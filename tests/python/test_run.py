"""The command `feedmill run` with scripts that do not know feedmill, in their own processes."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from feedmill.cli import cli, run

HERE = Path(__file__).parent
PACKAGE = Path(run.__file__).parents[2]
# Removes variables that are set for the tests themselves.
CLEAN = {name: value for name, value in os.environ.items()
         if name not in ("RANK", "LOCAL_WORLD_SIZE") and not name.startswith("FEEDMILL_RUN")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    return tmp_path


def write(name, text):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def finish(command, environment=None, stdin=""):
    environment = CLEAN | {"PYTHONPATH": os.environ["PYTHONPATH"]} | (environment or {})
    return subprocess.run([str(word) for word in command], env=environment, input=stdin, text=True,
                          capture_output=True, timeout=600)


def plain(*words, **options):
    return finish([sys.executable, *words], **options)


def under_run(*words, **options):
    """Runs the command that `feedmill run` executes, without first importing torch to build it."""
    return finish(*prepared(*words), **options)


def prepared(*words):
    """The command and the environment that `feedmill run` executes."""
    got = []

    def execute(file, command, environment):
        assert file == command[0]
        got.append((command, environment))
        raise OSError(0, "not run in the test")

    handlers = [(one, signal.getsignal(one)) for one in (signal.SIGPIPE, signal.SIGXFSZ)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execvpe", execute)
        with pytest.raises(SystemExit):
            cli.main(["run", *map(str, words)])
    for one, handler in handlers:
        assert signal.getsignal(one) is signal.SIG_DFL
        signal.signal(one, handler)
    (command, environment), = got
    return command, {name: value for name, value in environment.items()
                     if name == "PYTHONPATH" or name.startswith("FEEDMILL_RUN")}


def refused(capsys, *words):
    with pytest.raises(SystemExit) as end:
        cli.main(["run", *map(str, words)])
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# ---- scripts run like python ---------------------------------------------------------------------

TRAIN = """
import sys
sys.path.append({here!r})
import conftest  # an importable torchvision
import json, sitecustomize, torch, library
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

steps = [transforms.Resize((8, 8)), transforms.PILToTensor()]
dataset = ImageFolder(sys.argv[1], transforms.Compose(steps))
for epoch in range(2):
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    for images, targets in loader:
        print(images.shape, images.long().sum().item(), targets.tolist())
for batch in library.make([1, 2, 3]):
    print(batch)
print(sys.argv, sys.path[0], __name__, __file__, sitecustomize.__file__, sys.flags.no_site)
print(sys.stdin.read(), end="")
print(len(sys.path), [name for name in sys.path if "_site" in name])
with open("types", "w") as file:
    json.dump([str(type(one)) for one in (loader, library.make([1]))]
              + [DataLoader is torch.utils.data.DataLoader is torch.utils.data.dataloader.DataLoader
                 is library.DataLoader], file)
print("to stderr", file=sys.stderr)
sys.exit(3)
"""
LIBRARY = """
from torch.utils.data import DataLoader

def make(data):
    return DataLoader(data)
"""
OURS = "<class 'feedmill.loader.DataLoader'>"
TORCHS = "<class 'torch.utils.data.dataloader.DataLoader'>"


def test_an_unchanged_script(folder, small_images, monkeypatch):
    write("train.py", TRAIN.format(here=str(HERE)))
    write("library.py", LIBRARY)
    write("site/sitecustomize.py", "print('chained')")
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'site'}{os.pathsep}{PACKAGE}")
    words = ["train.py", small_images, "--watch", "--", "-m", "a b"]
    wanted = plain(*words, stdin="typed\n")
    assert wanted.returncode == 3 and wanted.stderr == "to stderr\n"
    assert wanted.stdout.startswith("chained\n") and "typed" in wanted.stdout
    assert json.loads(Path("types").read_text()) == [TORCHS, TORCHS, True]

    got = finish([sys.executable, "-m", "feedmill", "run", *words], stdin="typed\n")
    # The process of the command itself imports this sitecustomize first.
    assert (got.returncode, got.stdout) == (3, "chained\n" + wanted.stdout)
    assert json.loads(Path("types").read_text()) == [OURS, OURS, True]
    lines = got.stderr.splitlines()
    assert lines[0] == "to stderr"
    ours, fallback = [at for at, line in enumerate(lines) if line.startswith("feedmill: ")]
    script = folder / "train.py"
    assert lines[ours].startswith(f"feedmill: {script}:13: ")
    assert "  path       native" in lines[ours:fallback if fallback > ours else None]
    assert any(
        line.startswith("  delivered  80 samples in 10 batches natively (") for line in lines
    )
    assert lines[fallback - 1] == "  loaders    2 created at this line"
    assert lines[fallback].startswith(
        f"feedmill: {folder / 'library.py'}:5: fell back to torch: the dataset builtins.list is not supported natively"
    )

    got = under_run("--watch", *words, stdin="typed\n")
    assert (got.returncode, got.stdout) == (3, wanted.stdout)
    assert json.loads(Path("types").read_text()) == [TORCHS, TORCHS, True]
    assert got.stderr.count("feedmill: ") == got.stderr.count("\n  path       watched\n") == 2
    assert "\n  delivered  10 batches, 2 epochs\n" in got.stderr


def test_modules_code_and_commands(folder):
    text = "import sys; print(sys.argv[1:], sys.path, __name__, 'torch' in sys.modules, flush=True)"
    write("package/__init__.py", "")
    write("package/main.py", text)
    write("bin/tool", f"#!/bin/sh\nexec '{sys.executable}' -c \"{text}\" \"$@\"\n")
    os.chmod("bin/tool", 0o755)
    for words in (["-m", "package.main", "--seed", "1"], ["-c", text, "-m"], ["package/main.py"],
                  ["-"]):
        wanted, got = plain(*words, stdin=text), under_run(*words, stdin=text)
        assert wanted.returncode == 0
        assert (got.returncode, got.stdout, got.stderr) == (0, wanted.stdout, "")
    command, environment = prepared("--seed", "1", "bin/tool", "--seed", "2")
    assert command == ["bin/tool", "--seed", "2"]
    assert finish(command, environment).stdout == plain("-c", text, "--seed", "2").stdout


def test_failures(folder):
    write("fails.py", "def f():\n    raise ValueError('wrong')\n\nf()\n")
    write("interrupted.py", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
                            "while True:\n    pass\n")
    write("syntax.py", "if :\n")
    for name, status in (("fails.py", 1), ("interrupted.py", -signal.SIGINT), ("syntax.py", 1),
                         ("missing.py", 2)):
        wanted, got = plain(name), under_run(name)
        assert wanted.returncode == got.returncode == status
        assert wanted.stderr == got.stderr != ""


@pytest.mark.parametrize("text", ["raise RuntimeError('own')", "import no_such_module",
                                  "import sys; sys.meta_path.append(None)"])
def test_a_sitecustomize_that_fails_or_changes_paths(folder, text, monkeypatch):
    write("site/sitecustomize.py", text)
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'site'}{os.pathsep}{PACKAGE}")
    code = "import sys; print('sitecustomize' in sys.modules)"
    wanted, got = plain("-c", code), under_run("-c", code)
    assert (got.returncode, got.stdout, got.stderr) == (0, wanted.stdout, wanted.stderr)


@pytest.mark.slow
def test_an_error_after_the_report_keeps_traceback_and_status(folder):
    write("train.py", "from torch.utils.data import DataLoader\n"
                      "for batch in DataLoader([1, 2]):\n"
                      "    pass\n"
                      "raise ValueError('at the end')\n")
    wanted, got = plain("train.py"), under_run("train.py")
    assert wanted.returncode == got.returncode == 1
    errors, _, report = got.stderr.partition("feedmill: ")
    assert errors == wanted.stderr
    assert f"{folder / 'train.py'}:2: fell back to torch" in report
    quiet = under_run("--quiet", "train.py")
    assert (quiet.returncode, quiet.stderr) == (1, wanted.stderr)


@pytest.mark.slow
def test_a_report_that_cannot_be_written(folder):
    text = ("import os\nfrom torch.utils.data import DataLoader\nlist(DataLoader([1]))\n"
            "os.rename('folder', 'away')\nos.close(2)\n")
    write("train.py", text)
    Path("folder").mkdir()
    got = under_run("--report", "folder/report", "train.py")
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")
    assert Path("away/report").read_text() == ""


# ---- the DataLoader that the script gets ---------------------------------------------------------

OPTIONS = """
import sys
sys.path.append({here!r})
import feedmill  # before torch, which is then replaced when it is imported
import conftest, contextlib, inspect, pickle, torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

steps = [transforms.Resize((8, 8)), transforms.PILToTensor()]
images = ImageFolder(sys.argv[1], transforms.Compose(steps))
assert DataLoader is torch.utils.data.DataLoader is feedmill.DataLoader

loader = DataLoader(images, 4)
assert (loader.native, loader.seed, loader.threads) == ("auto", 7, 2)
assert type(loader) is DataLoader and isinstance(loader, torch.utils.data.dataloader.DataLoader)
again = pickle.loads(pickle.dumps(loader))
assert type(again) is DataLoader and again.seed == 7
assert feedmill.DataLoader(images, native="off", seed=None).seed is None
assert inspect.signature(DataLoader).parameters["seed"].default == 7
DataLoader[int], DataLoader[torch.Tensor]  # as torch's, for annotations


def path_of(loader):
    wanted = [index for _, index in images.samples]
    got = [target for batch in loader for target in batch[1].tolist()]
    assert got == wanted, (got, wanted)
    return feedmill.DataLoader.stats(loader).path


class Typed(DataLoader[int]):
    pass


class Positional(DataLoader):
    def __init__(self, dataset, size):
        super().__init__(dataset, size, False, None, None, 1, None, False, False, 0)


class Keywords(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return super().__iter__()

    def set_epoch(self, epoch):
        self.epoch = epoch


class Multi(DataLoader):
    "As some libraries keep their workers."
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", list(self.batch_sampler))
        self.iterator = super().__iter__()

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


assert path_of(Typed(images, 4)) == "native"
assert path_of(Positional(images, 4)) == "native"
keywords = Keywords(images, batch_size=4)
assert path_of(keywords) == "native" and keywords.epoch == 1
assert path_of(Multi(images, 4)) == "native"


class OwnIterator(DataLoader):
    def _get_iterator(self):
        return iter([(0, torch.tensor([index for _, index in images.samples]))])


assert path_of(OwnIterator(images)) == "none"


class SetsBefore(DataLoader):
    def __init__(self, dataset, seed):
        self.seed = seed
        super().__init__(dataset, 4)


class SetsAfter(DataLoader):
    def __init__(self, dataset):
        super().__init__(dataset, 4)
        self.reader = object()
        self._rank = 3
        self._path = "/data"


class SetsValid(DataLoader):
    def __init__(self, dataset):
        super().__init__(dataset, 4)
        self.dtype = torch.float16


class Method(DataLoader):
    def reader(self):
        return "mine"


class Property(DataLoader):
    @property
    def threads(self):
        return "mine"


class NoSuper(DataLoader):
    def __init__(self, other):
        self.__dict__.update({{k: v for k, v in vars(other).items() if k != "_feedmill"}})


class OptionOfThatName(DataLoader):
    def __init__(self, dataset):
        super().__init__(dataset, 4, native="require")
        self.native = "mine"


for own in (SetsBefore(images, "mine"), SetsAfter(images), SetsValid(images), Method(images, 4),
            Property(images, 4), OptionOfThatName(images)):
    assert path_of(own) == "native", type(own)
assert SetsBefore(images, "mine").seed == "mine"
after = SetsAfter(images)
assert (after._rank, type(after.reader)) == (3, object)
assert next(iter(SetsValid(images)))[0].dtype is torch.uint8
assert Method(images).reader() == Property(images).threads == "mine"
left_out = NoSuper(loader)
assert path_of(left_out) == "torch" and left_out.stats().batches == 10
with contextlib.redirect_stdout(None):
    assert "NoSuper did not call the constructor of DataLoader" in left_out.explain()
assert left_out.report() and path_of(pickle.loads(pickle.dumps(left_out))) == "native"
loader.seed = object()
assert path_of(loader) == "none"
print("all good")
"""


@pytest.mark.slow
def test_options_and_subclasses(folder, small_images):
    write("train.py", OPTIONS.format(here=str(HERE)))
    got = under_run("--seed", 7, "--threads=2", "--native", "auto", "train.py", small_images)
    assert (got.returncode, got.stdout) == (0, "all good\n"), got.stderr
    assert "__main__.NoSuper did not call the constructor of DataLoader" in got.stderr
    assert ("the script uses the name of one of feedmill's options for something else: "
            "seed is <object") in got.stderr


TRAINING = """
import sys, zlib
sys.path[:0] = [{here!r}]
import conftest, torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
torch.manual_seed(3)
dataset = ImageFolder(sys.argv[1], v2.Compose([v2.RandomResizedCrop(16), v2.ToTensor()]))
for workers in (0, 2):
    for images, labels in DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers):
        print(zlib.crc32(images.numpy().tobytes()), labels.tolist(), torch.rand(1).item())
"""


@pytest.mark.slow
def test_the_same_training_as_without(folder, small_images):
    write("train.py", TRAINING.format(here=str(HERE)))
    got = under_run("--rng", "torch", "--native=require", "train.py", small_images)
    assert got.stdout == plain("train.py", small_images).stdout and got.stdout, got.stderr
    other = under_run("--rng", "feedmill", "train.py", small_images)
    assert other.returncode == 0 and other.stdout != got.stdout


def test_native_require_for_a_script(folder):
    write("train.py", "from torch.utils.data import DataLoader\nDataLoader([1])\n")
    got = under_run("--native=require", "train.py")
    assert got.returncode == 1
    assert "RuntimeError: native='require', but the native path can't be taken:" in got.stderr


# ---- other processes -----------------------------------------------------------------------------

CHILDREN = """
import multiprocessing, os, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Inner(Dataset):
    "Has a loader of its own, in the worker process."
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return sum(len(batch) for batch in DataLoader([1, 2, 3]))

def work(rank, n_batches):
    os.environ["RANK"] = str(rank)
    list(DataLoader(list(range(n_batches))))

def spawned(rank):
    work(rank, 2)
    list(DataLoader(Inner(), num_workers=1, multiprocessing_context="spawn"))

if __name__ == "__main__":
    kept = DataLoader([1, 2, 3, 4, 5])
    list(kept)
    torch.multiprocessing.spawn(spawned, nprocs=1)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=work, args=(1, 3))
    child.start()
    child.join()
    if os.fork() == 0:
        os.environ["RANK"] = "2"
        list(kept)
        sys.exit(0)
    os.wait()
    persistent = DataLoader([1, 2], num_workers=1, persistent_workers=True)
    for _ in range(3):
        for batch in persistent:
            pass
    iter(DataLoader([1]))  # no batch is requested
    for _ in range(40):
        next(iter(DataLoader([1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("watch", [False, True])
def test_child_processes_are_reported(folder, watch):
    write("train.py", CHILDREN)
    write("report", '{"rank": "older"}\n')
    got = under_run(*["--watch"] * watch, "--report", "report", "train.py")
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")
    lines = [json.loads(line) for line in Path("report").read_text().splitlines()]
    seen = {(one["rank"], one["place"].rpartition(":")[2], one["epochs"], one["batches"],
             one["loaders"]) for one in lines[1:]}
    assert seen == {
        ("0", "16", 1, 2, 1), ("0", "20", 1, 4, 1), ("1", "16", 1, 3, 1), ("2", "23", 1, 5, 0),
        (None, "23", 1, 5, 1), (None, "35", 3, 6, 1), (None, "41", 40, 40, 40),
    }
    assert len(lines) == 1 + len(seen)
    assert {one["path"] for one in lines[1:]} == {"watched" if watch else "torch"}
    assert all(0 < one["data_wait_ns"] <= one["wall_ns"] and one["verdict"] for one in lines[1:])


TRAINER = """
from torch.utils.data import DataLoader

def loader_of(data, **options):
    return DataLoader(data, **options)

def fit(train, validation):
    for epoch in range(2):
        for batch in loader_of(train, batch_size=2, shuffle=True):
            pass
        for batch in loader_of(validation, batch_size=2):
            pass
"""


SCRIPT_OF_LIBRARIES = """
import sys
sys.path.append("env/site-packages")
import timm.data, trainer
trainer.fit(range(8), range(4))
timm.data.fit(range(8), range(4))
for n in range(1, 31):
    for batch in trainer.loader_of(range(n)): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("watch", [pytest.param(False, marks=pytest.mark.slow), True])
def test_loaders_that_a_library_makes_on_one_line(folder, watch):
    """The report names the script's line, and distinguishes training from validation."""
    write("env/site-packages/trainer.py", TRAINER)
    write("timm/data.py", TRAINER)  # a library in the script's folder
    write("train.py", SCRIPT_OF_LIBRARIES)
    words = ["--watch"] if watch else []
    got = under_run(*words, "train.py")
    assert got.returncode == 0
    lines = [line for line in got.stderr.splitlines() if line.startswith("feedmill: ")]
    heads = Counter(line.removeprefix(f"feedmill: {folder}/").partition("): ")[0] for line in lines)
    assert heads == Counter(
        [f"train.py:{line} (range of {n}, {order}"
         for line in (5, 6) for n, order in ((8, "shuffled"), (4, "in order"))]
        + [f"train.py:8 (range of {n}, in order" for n in range(1, 9)] + ["train.py:8 (others"]
    )
    write("report", "")
    assert under_run(*words, "--report", "report", "train.py").stderr == ""
    seen = [json.loads(line) for line in Path("report").read_text().splitlines()]
    assert [(one["data"], one["batches"], one["loaders"]) for one in seen[:2]] == [
        ("range of 8, shuffled", 8, 4), ("range of 4, in order", 4, 4)
    ]


@pytest.mark.slow
def test_the_reported_line_of_an_installed_program(folder, monkeypatch):
    packages = folder / "env" / "site-packages"
    write(packages / "trainer.py", TRAINER)
    write(packages / "program.py", "import trainer\ntrainer.fit(range(8), range(4))\n")
    monkeypatch.setenv("PYTHONPATH", f"{PACKAGE}{os.pathsep}{packages}")
    got = under_run("-c", "import program")
    assert "feedmill: <string>:1 (range of 8, shuffled): " in got.stderr
    got = under_run("-m", "program")
    assert f"feedmill: {packages}/trainer.py:5 (range of 8, shuffled): " in got.stderr


def test_other_interpreters_are_left_alone(folder):
    write("no_torch/torch/__init__.py", "raise ImportError('a torch that fails')")
    code = "import sys\ntry:\n    import torch\nexcept ImportError as error:\n    print(error)"
    command, environment = prepared("-c", code)
    # torch is installed beside feedmill, so the other torch's folder must come before both.
    environment["PYTHONPATH"] = os.pathsep.join([run._SITE, str(folder / "no_torch"), str(PACKAGE)])
    got = finish(command, environment)
    assert (got.stdout, got.stderr) == ("a torch that fails\n", "")
    write("other/torch/__init__.py", "__version__ = 'no torch at all'")
    environment["PYTHONPATH"] = f"{run._SITE}{os.pathsep}{folder / 'other'}"
    got = finish([sys.executable, "-c", "import torch; print(torch.__version__)"], environment)
    assert (got.returncode, got.stdout) == (0, "no torch at all\n")
    assert "feedmill run: could not replace torch's DataLoader in process" in got.stderr
    code = "import sys; print([type(one).__name__ for one in sys.meta_path])"
    got = finish([sys.executable, "-I", "-c", code], environment)
    assert got.stdout == plain("-c", code).stdout


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize("words, own, rest", [
    ("run x.py --watch", "run", "x.py --watch"),
    ("run --watch x.py --watch", "run --watch", "x.py --watch"),
    ("run --seed 3 --report=a x.py", "run --seed 3 --report=a", "x.py"),
    ("run -m run --help", "run", "-m run --help"),
    ("run --quiet -- -odd.py -- x", "run --quiet", "-odd.py -- x"),
    ("run -", "run", "-"),
    ("run --seed", "run --seed", ""),
    ("run", "run", ""),
    ("bench DIR --json", "bench DIR --json", ""),
])
def test_arguments_are_split_at_the_script(words, own, rest):
    assert run.split(words.split()) == (own.split(), rest.split())


def test_the_environment_of_the_script(folder, monkeypatch):
    write("x.py", "")
    monkeypatch.setenv("FEEDMILL_RUN_SEED", "9")
    _, environment = prepared("x.py")
    assert environment == {"PYTHONPATH": f"{run._SITE}{os.pathsep}{PACKAGE}",
                           "FEEDMILL_RUN": "replace"}
    for value in ("", None):
        if value is None:
            monkeypatch.delenv("PYTHONPATH")
        else:
            monkeypatch.setenv("PYTHONPATH", value)
        command, environment = prepared("--watch", "--quiet", "--report", "r", "x.py", "a")
        assert command == [sys.executable, "x.py", "a"]
        assert environment == {"PYTHONPATH": run._SITE, "FEEDMILL_RUN": "watch",
                               "FEEDMILL_RUN_QUIET": "1",
                               "FEEDMILL_RUN_REPORT": str(folder / "r")}
    _, environment = prepared("--rng", "torch", "--deferred=off", "x.py")
    assert (environment["FEEDMILL_RUN_RNG"], environment["FEEDMILL_RUN_DEFERRED"]) == (
        "torch", "off"
    )
    _, environment = prepared("--native", "verify", "--seed", "-3", "--threads", "4", "x.py")
    assert [environment[f"FEEDMILL_RUN_{name}"] for name in ("NATIVE", "SEED", "THREADS")] == [
        "verify", "-3", "4"
    ]


def test_bad_usage(folder, capsys):
    write("x.py", "")
    assert "there is nothing to run:" in refused(capsys)
    assert "there is nothing to run:" in refused(capsys, "--watch")
    assert "-m needs a module" in refused(capsys, "-m")
    text = "no-such-tool is neither a script in this folder nor a command"
    assert text in refused(capsys, "no-such-tool", "x")
    assert "unrecognized arguments: --wat" in refused(capsys, "--wat", "x.py")
    assert "'0' is not a whole number from 1" in refused(capsys, "--threads", "0", "x.py")
    assert "invalid choice: 'on'" in refused(capsys, "--native", "on", "x.py")
    assert "leave one of them out" in refused(capsys, "--rng", "torch", "--seed", 1, "x.py")
    text = "--seed is an option of feedmill's DataLoader"
    assert text in refused(capsys, "--watch", "--seed", 1, "x.py")
    assert "nowhere/r can't be written: No such file" in refused(
        capsys, "--report", "nowhere/r", "x.py"
    )


def test_help(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["run", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "feedmill run [options] -m MODULE" in text and "--watch" in text and "torchrun" in text
    assert max(map(len, text.splitlines())) <= 100
