"""Tests of the runner itself, on a made-up codebase."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "hook"), str(HERE.parent / "support")]

import torchvision_cpu  # noqa: E402, F401  before anything else imports torchvision
import data  # noqa: E402
import numpy as np  # noqa: E402
import run  # noqa: E402
import scripts  # noqa: E402
import speeds  # noqa: E402
import torch  # noqa: E402
import trees  # noqa: E402
from PIL import Image  # noqa: E402
from public_scripts_hook import speed as measuring  # noqa: E402
from public_scripts_hook.digests import digests  # noqa: E402

# Trains on a folder of images. Under feedmill, FAULT changes one value of one image; "deferred":
# only where decoding is put off. OPTIONS, as JSON, are feedmill's, for a loader that draws.
SCRIPT = """
import json, os, sys
import torch
from torchvision import datasets, transforms
from torch.utils.data import DataLoader

def fault(image):
    wanted = os.environ.get("FAULT")
    if "feedmill" in sys.modules and wanted:
        from feedmill.deferred.switch import is_deferring
        if wanted == "deferred" and not is_deferring():
            return image
        image[0, 0, 0] += 1e-6
    return image

steps = [transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()]
if "FAULT" in os.environ:
    steps.append(fault)
if "OPTIONS" in os.environ:
    steps[:2] = [transforms.RandomResizedCrop(32)]
is_feedmill = DataLoader.__module__.startswith("feedmill")
options = json.loads(os.environ.get("OPTIONS", "{}")) if is_feedmill else {}
data = datasets.ImageFolder(sys.argv[1], transforms.Compose(steps))
for images, labels in DataLoader(data, batch_size=4, shuffle=True, num_workers=1, **options):
    raise SystemExit("the script goes on after its loader was recorded")
"""


# Its collate_fn draws from torch's generator, as its transform does. With FAULT it also changes what
# it makes under feedmill. OPTIONS: as above.
COLLATES = """
import importlib.util, json, os, sys
importlib.util.find_spec("torchvision")  # as transformers does, before anybody imports it
import torch
from torchvision import datasets, transforms
from torch.utils.data import DataLoader, default_collate

def collate(samples):
    images, labels = default_collate(samples)
    if "feedmill" in sys.modules and os.environ.get("FAULT"):
        labels = labels + 1
    return images, labels, torch.randint(1000, (len(images),))

steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
is_feedmill = DataLoader.__module__.startswith("feedmill")
options = json.loads(os.environ.get("OPTIONS", "{}")) if is_feedmill else {}
data = datasets.ImageFolder(sys.argv[1], transforms.Compose(steps))
loader = DataLoader(data, batch_size=4, collate_fn=collate, num_workers=2, **options)
for images, labels, drawn in loader:
    raise SystemExit("the script goes on after its loader was recorded")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script in a Git repository, which can be had from a folder of mirrors."""
    repository = tmp_path / "mirrors" / "someone+code"
    repository.mkdir(parents=True)
    (repository / "train.py").write_text(SCRIPT)
    (repository / "collates.py").write_text(COLLATES)

    def git(*words):
        options = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", "-C", repository, *options, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "code")
    monkeypatch.setenv("FEEDMILL_PUBLIC_REPOS", str(tmp_path / "mirrors"))
    monkeypatch.setattr(scripts, "WORK", tmp_path / "work")

    def make(**options):
        options.setdefault("command", "train.py {imagenet}/val")
        head = git("rev-parse", "HEAD")
        return scripts.Script("code", "train", head, repository="someone/code", **options)

    return make


def results(script, rng="auto"):
    return list(run.compare(scripts.Runner(2, 300, rng), script, False, False))


def test_equal_batches_are_equal(script):
    [result] = results(script())
    assert (result.path, result.result) == ("native", "equal"), result


def test_one_bit_makes_a_difference(script):
    [result] = results(script(env={"FAULT": "1"}))
    assert (result.path, result.result) == ("deferred", "differs"), result
    assert "batch 0, all" in result.text


@pytest.mark.parametrize(("fault", "wanted"), [("", "equal"), ("1", "differs")])
def test_the_batches_of_a_collate_fn_that_draws(script, fault, wanted):
    made = script(command="collates.py {imagenet}/val", env={"FAULT": fault})
    [result] = results(made)
    assert (result.path, result.result) == ("native", wanted), result


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "equal"),
        ({"seed": 7}, "same draws"),
        ({"rng": "feedmill"}, "same draws"),
        ({"on_error": "skip"}, "differs"),  # its own random numbers, but nobody asked for them
    ],
)
def test_other_random_numbers_are_good_only_if_asked_for(script, options, wanted):
    [result] = results(script(env={"OPTIONS": json.dumps(options)}))
    assert (result.path, result.result) == ("native", wanted), result
    assert result.is_good == (wanted != "differs")


def test_a_run_may_ask_for_other_random_numbers(script):
    [result] = results(script(env={"OPTIONS": "{}"}), rng="feedmill")
    assert (result.path, result.result) == ("native", "same draws"), result


@pytest.mark.parametrize(
    ("options", "fault", "wanted"),
    [
        ({"seed": 7}, "", "collate draws"),
        ({"seed": 7}, "1", "differs"),
        ({"on_error": "skip"}, "", "differs"),
    ],
)
def test_draws_of_a_collate_fn_are_told_from_other_differences(script, options, fault, wanted):
    environment = {"OPTIONS": json.dumps(options), "FAULT": fault}
    [result] = results(script(command="collates.py {imagenet}/val", env=environment))
    assert (result.path, result.result) == ("native", wanted), result


def test_a_script_that_fails_is_a_failure(script):
    [result] = results(script(edits=[["train.py", "import json", "import missing_module"]]))
    assert result.result == "failed"
    assert "No module named 'missing_module'" in result.text
    assert not result.is_good


def test_loaders_are_measured_beside_torchs(script):
    """Not what comes out, which depends on the machine."""
    runner = scripts.Runner(2, 300)
    [speed] = speeds.measure(runner, script(env={"FAULT": ""}), 2, 0.01, ())  # "": not native
    assert not speed.error, speed
    assert (speed.path, speed.compared, speed.workers) == ("deferred", "equal", 1)
    assert speed.batches >= 12
    for rounds in (speed.cpu_s, speed.wall_s):
        assert len(rounds) == 2
        assert all(torch_s > 0 and ours_s > 0 for torch_s, ours_s in rounds)
    # Another run measures only what is asked for.
    assert list(speeds.measure(runner, script(), 1, 0.01, [1])) == []


def test_a_difference_is_found_before_measuring(script):
    made = script(env={"FAULT": "deferred"})
    [speed] = speeds.measure(scripts.Runner(2, 300), made, 1, 0.01, ())
    assert (speed.path, speed.compared) == ("deferred", "differ"), speed
    assert not speed.is_good


def test_a_script_that_fails_is_not_measured(script):
    broken = script(edits=[["train.py", "import json", "import missing_module"]])
    [speed] = speeds.measure(scripts.Runner(2, 300), broken, 1, 0.01, ())
    assert "No module named 'missing_module'" in speed.error
    assert not speed.is_good


def made_speed(name, ratios, **options):
    return speeds.Speed(name, 0, "train.py:1 Data", "deferred", 2, 12, "equal",
                        [(one, 1.0) for one in ratios], [(1.0, 1.0)] * len(ratios), **options)  # fmt: skip


def test_medians_and_doubtful_loaders(tmp_path):
    rows = [
        made_speed("a/fast", [2.0, 0.5, 1.5]),
        made_speed("b/doubtful", [1.1, 1.2, 0.5]),
        made_speed("c/slow", [0.97, 0.9, 1.5]),
        speeds.Speed("d/failed", error="no module"),
    ]
    assert [one.cpu_ratio for one in rows[:3]] == [1.5, 1.1, 0.97]
    assert [one.is_good for one in rows] == [True, True, False, False]
    path = tmp_path / "speeds.jsonl"
    path.write_text("".join(json.dumps(vars(one)) + "\n" for one in rows))
    assert speeds.doubtful(path, 1.3) == {"b/doubtful": [0], "c/slow": [0], "d/failed": []}
    text = speeds.table(speeds.read(path))
    assert "| 0.97 | 0.90 to 1.50 |" in text
    assert "3 loaders measured, 1 failed" in text
    assert "1 slower by more than 2%" in text


def sampled(**options):
    loader = torch.utils.data.DataLoader(torch.arange(5), **options)
    return [one.tolist() for one in torch.utils.data.DataLoader(**measuring.arguments(loader, 4))]


def test_a_measured_epoch_repeats_the_samplers():
    assert sampled(batch_size=2) == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert sampled(batch_sampler=[[3], [1, 2]]) == [[3], [1, 2], [3], [1, 2]]
    assert sampled(batch_size=None) == [0, 1, 2, 3]
    drawn = sum(sampled(batch_size=2, shuffle=True), [])
    assert sorted(drawn[:5]) == [0, 1, 2, 3, 4]
    assert len(drawn) == 8


def test_a_repository_that_can_not_be_had(script, tmp_path):
    with pytest.raises(trees.MissingError, match="no mirror of someone/else"):
        trees.tree(tmp_path, ["someone/else"], "0" * 40, [])


IMAGE = torch.arange(2 * 3 * 4 * 4, dtype=torch.float32).reshape(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        (lambda batch: batch, set()),
        (lambda batch: [torch.nextafter(batch[0], batch[0] + 1), batch[1]], {"all"}),
        (lambda batch: [batch[0], batch[1] + 1], {"all", "labels"}),
        (lambda batch: tuple(batch), {"layout"}),
        (lambda batch: [batch[0].double(), batch[1]], {"all", "layout"}),
    ],
)
def test_what_digests_tell_apart(change, differing):
    batch = [IMAGE, torch.tensor([1, 2])]
    one, other = digests(batch), digests(change(batch))
    assert {kind for kind in one if one[kind] != other[kind]} == differing


def test_digests_of_other_types():
    picture = Image.fromarray(np.zeros((2, 3, 3), np.uint8))
    batch = {"image": [picture, picture], "path": ("a", "b"), "array": np.ones(3)}
    other = {**batch, "path": ("a", "c")}
    assert "RGB[3, 2]" in digests(batch)["layout"]
    assert digests(batch)["labels"] != digests(other)["labels"]


# ---- given images --------------------------------------------------------------------------------


def given_images(root, n=3):
    for i in range(n):
        path = root / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 50, 3), 30 * i, np.uint8)).save(path)
    return data.Given(root, n_training=10)


def test_given_images_are_repeated(tmp_path):
    root = data.folder(tmp_path / "work", "imagenet_rgb", given_images(tmp_path / "given"))
    assert sorted(path.name for path in root.glob("val/*/*")) == ["0.jpg", "1.jpg", "2.jpg"]
    of_first = list(root.glob("train/class0/0-*.jpg"))
    assert len(list(root.glob("train/*/*"))) == 12 and len(of_first) == 4
    assert of_first[0].read_bytes() == (tmp_path / "given/class0/0.jpg").read_bytes()


def test_other_layouts_and_made_ones_stay_as_they_are(tmp_path):
    given = given_images(tmp_path / "given")
    assert len(list(data.folder(tmp_path / "work", "flat", given).glob("*.jpg"))) == 40
    data.folder(tmp_path / "work", "imagenet", given)
    assert len(list(data.folder(tmp_path / "work", "imagenet").glob("val/*/*"))) == 24


def test_another_folder_of_images_is_another_data_set(tmp_path):
    for n in (1, 3):
        given = given_images(tmp_path / str(n), n)
        root = data.folder(tmp_path / "work", "imagenet", given)
        assert len(list(root.glob("val/*/*"))) == n
    root = data.folder(tmp_path / "work", "imagenet", given._replace(n_training=3))
    assert len(list(root.glob("train/*/*"))) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="needs a folder per class"):
        data.folder(tmp_path / "work", "imagenet", data.Given(tmp_path / "empty", 1))


def test_a_script_gets_the_given_images(script, tmp_path):
    runner = scripts.Runner(2, 300, images=given_images(tmp_path / "given", 8))
    [one] = run.compare(runner, script(command="train.py {imagenet}/train"), False, False)
    assert (one.path, one.result, one.n_batches) == ("native", "equal", 2)
    [made] = (tmp_path / "work").glob("data*/imagenet")
    assert len(list(made.glob("val/*/*"))) == 8


# ---- errors --------------------------------------------------------------------------------------


def recorded(error, n_batches=1, sample=""):
    batch = {"all": "1", "labels": "2", "layout": "3"}
    return {"batches": [batch] * n_batches, "images": 4, "path": "native", "error": error + sample}


@pytest.mark.parametrize(("ours", "is_equal"), [
    (recorded("ValueError: bits"), True),
    (recorded("ValueError: bits", sample=" [dataset index 7, file '/a/b [1].jpg']"), True),
    (recorded("ValueError: bits", 2), False),
    (recorded("ValueError: other"), False),
    (recorded("TypeError: bits"), False),
])  # fmt: skip
def test_errors_of_the_script(ours, is_equal):
    """The sample that feedmill adds to a message is no difference, the number of batches is."""
    theirs = recorded("ValueError: bits")
    result, text = run._result(theirs, ours, None, None, None, None)
    assert (text == "with torch and feedmill, after 1 equal batches: ValueError: bits") == is_equal
    assert result == ("failed" if is_equal else "differs")
