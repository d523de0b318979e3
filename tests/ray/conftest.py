"""A Ray cluster of several nodes on this machine, for the tests of packing with Ray.

It listens on the loopback interface only, and nothing of it is left when the tests end.
"""

import os
import shutil
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

# The helpers of tests/python and tests/support are used here, too.
for _folder in ("python", "support"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))

# Ray reads these when it is imported. The first one makes 127.0.0.1 the address of each node; the
# folder has a short name because paths of sockets must not be longer than 107 bytes. Workers with
# the lowest priority, as Ray starts them, would hardly run on a busy machine.
_folder = tempfile.mkdtemp(prefix="fmray-", dir="/tmp")
os.environ.update({
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TMPDIR": _folder, "RAY_worker_niceness": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
})
os.environ.pop("RAY_ADDRESS", None)

# When a node is killed, the kernel sends SIGHUP and SIGCONT to its stopped processes. Under nohup
# they would inherit that SIGHUP is ignored, go on, and finish what the test wants to be lost. With a
# handler here, they start with the default action.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

import pytest  # noqa: E402

if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torchvision_cpu  # noqa: F401  before anything else imports torchvision
    import helpers
    from feedmill.cli import cli
    from runs import N_IMAGES, SHARD, Run


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """N_IMAGES JPEGs in three classes, all different: a comment in each has its number."""
    root = tmp_path_factory.mktemp("images")
    made = [helpers.save_jpeg(root / "made.jpg", 24 + i, 20, seed=i).read_bytes() for i in range(9)]
    (root / "made.jpg").unlink()
    for i in range(N_IMAGES):
        text = f"image {i}".encode()
        comment = b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text
        data = made[i % len(made)]
        path = root / f"class{i % 3}" / f"{i:06}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data[:2] + comment + data[2:])
    return root


@pytest.fixture(scope="session")
def packed(folder, tmp_path_factory):
    """A pack of that folder, made by one process."""
    out = tmp_path_factory.mktemp("packs") / "whole"
    assert cli.main(["pack", str(folder), str(out), "--shard-size", SHARD]) == 0
    return out


@pytest.fixture(autouse=True)
def no_run_outlives_its_test():
    yield
    for run in Run.started:
        run.process.kill()
        run.end()
    Run.started.clear()


def pytest_sessionfinish(session, exitstatus):
    shutil.rmtree(_folder, ignore_errors=True)
    if "collect_ignore_glob" in globals():
        print("\nskipped: Ray is not installed (make test-ray)")
        if os.environ.get("FEEDMILL_NO_SKIP") != "1":
            session.exitstatus = pytest.ExitCode.OK
