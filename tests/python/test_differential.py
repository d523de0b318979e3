"""Random scripts must observe the same with feedmill's DataLoader as with torch's."""

import faulthandler
import os
import signal

import helpers
import pytest
from diff_scripts import scripts
from diff_worlds import N_FILES, first_difference, transcripts
from hypothesis import HealthCheck, given, seed, settings

# FEEDMILL_DIFF_SCRIPTS sets how many scripts are run, FEEDMILL_DIFF_SEED which ones.
N_SCRIPTS = int(os.environ.get("FEEDMILL_DIFF_SCRIPTS", "100"))
SEED = os.environ.get("FEEDMILL_DIFF_SEED")
# Many scripts are run in parts of at most 250, so that several processes can share them.
N_PARTS = -(-N_SCRIPTS // 250)
LONGEST_S = 60


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Folders by name, of 24 small JPEGs each; "bad" has five damaged or unusual files."""
    roots = {}
    for name in ("good", "bad"):
        roots[name] = tmp_path_factory.mktemp(name)
        for i in range(N_FILES):
            path = roots[name] / f"class{i // 9}" / f"{i:02}.jpg"
            helpers.save_jpeg(path, 8 + 7 * i % 33, 40 - 5 * i % 33, seed=i,
                              mode="L" if i % 7 == 3 else "RGB")
            if name == "bad" and i % 5 == 2:
                _spoil(path, i)
    return roots


def _spoil(path, number):
    data = path.read_bytes()
    if number == 2:
        helpers.Image.fromarray(helpers.pixels(20, 15)).save(path, "BMP")
    elif number == 7:
        path.write_bytes(data[: len(data) * 2 // 3])
    elif number == 12:
        path.write_text("no image\n" * 50)
    elif number == 17:
        path.unlink()
        path.symlink_to("missing")
    else:
        helpers.Image.fromarray(helpers.pixels(20, 15)).convert("CMYK").save(path, "JPEG")


def _time_is_up(*_):
    raise AssertionError(f"the script hangs: it took more than {LONGEST_S} s")


@pytest.mark.slow  # run by make test-differential
@pytest.mark.parametrize("part", range(N_PARTS))
def test_random_scripts_observe_the_same(roots, part):
    @seed(int(SEED or 0) + part)
    @settings(max_examples=-(-N_SCRIPTS // N_PARTS), deadline=None, database=None, print_blob=True,
              suppress_health_check=list(HealthCheck))
    @given(scripts())
    def see_the_same(script):
        old = signal.signal(signal.SIGALRM, _time_is_up)
        signal.alarm(LONGEST_S)
        try:
            difference = first_difference(script, *transcripts(script, roots[script.files]))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, old)
        assert not difference, difference

    # The alarm ends a script that hangs. There is no limit for all scripts together.
    faulthandler.cancel_dump_traceback_later()
    see_the_same()
