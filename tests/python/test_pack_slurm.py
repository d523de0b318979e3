"""The example for Slurm, examples/pack_slurm.sh, with a program `sbatch` that runs the jobs here."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import helpers
import pytest
from feedmill.cli import cli

SCRIPT = Path(__file__).parents[2] / "pytorch_ext" / "examples" / "pack_slurm.sh"

# Runs a job at once: the tasks of an array in reverse order, as Slurm may start them in any order.
SBATCH = """#!/bin/bash
set -eu
echo "sbatch $*" >>"$JOBS"
array= wrapped=
while [ $# -gt 0 ]; do
    case "$1" in
    --array=*) array=${1#*=} ;;
    --wrap) wrapped=$2; shift ;;
    -*) ;;
    *) break ;;
    esac
    shift
done
if [ -n "$wrapped" ]; then
    exec bash -c "$wrapped"
fi
script=$1
: "${array:=$(sed -n 's/^#SBATCH --array=//p' "$script")}"
case "$array" in
*-*) tasks=$(seq "${array#*-}" -1 "${array%-*}") ;;
*) tasks=${array//,/ } ;;
esac
cpus=$(sed -n 's/^#SBATCH --cpus-per-task=//p' "$script")
for task in $tasks; do
    SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_TASK_COUNT=$(echo $tasks | wc -w) \\
        SLURM_CPUS_PER_TASK=$cpus bash "$@" >&2 || failed=1
done
[ -z "${failed:-}" ]
echo 4711
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Folder of the script with 3 parts, of the programs sbatch and feedmill, and of their jobs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (
        ("sbatch", SBATCH),
        ("feedmill", f'#!/bin/sh\nexec "{sys.executable}" -m feedmill "$@"\n'),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("JOBS", str(tmp_path / "jobs"))
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    text = SCRIPT.read_text()
    parts = int(re.search(r"^N_PARTS=(\d+)", text, re.MULTILINE)[1])
    assert f"--array=0-{parts - 1}\n" in text
    text = text.replace(f"--array=0-{parts - 1}\n", "--array=0-2\n")
    # In shards of 1 GB all images would be in one, and two parts empty.
    text = text.replace(" --part", " --shard-size 20K --part")
    (tmp_path / "pack_slurm.sh").write_text(text.replace(f"N_PARTS={parts} ", "N_PARTS=3 "))
    for i in range(60):
        helpers.save_jpeg(tmp_path / "in put" / f"class{i % 3}" / f"{i}.jpg", 60, 50 + i, seed=i)
    return tmp_path


def submit(*words):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)


def test_the_array_and_the_joining_job(slurm):
    """The parts and the joining job make the bytes of one run. SRC and OUT may have spaces."""
    done = submit("bash", slurm / "pack_slurm.sh", slurm / "in put", slurm / "the pack")
    assert done.returncode == 0, done.stderr
    jobs = (slurm / "jobs").read_text().splitlines()
    assert len(jobs) == 2 and "--dependency=afterok:4711" in jobs[1]
    one = slurm / "one"
    assert cli.main(["pack", str(slurm / "in put"), str(one), "--shard-size", "20K"]) == 0
    made, wanted = ({path.name: path.read_bytes() for path in folder.iterdir()}
                    for folder in (slurm / "the pack", one))
    assert len(wanted) > 5 and made == wanted


def test_single_tasks_are_submitted_again(slurm):
    script, source, out = slurm / "pack_slurm.sh", slurm / "in put", slurm / "out"
    assert submit("sbatch", "--array=0,2", script, source, out).returncode == 0
    join = ("sbatch", "--wrap", f"feedmill pack --join {out}")
    done = submit(*join)
    assert done.returncode == 1 and "shards are missing" in done.stderr
    assert submit("sbatch", "--array=1", script, source, out).returncode == 0
    assert submit(*join).returncode == 0
    assert (out / "index.fmp").exists()


def test_the_usage(slurm):
    done = submit("bash", SCRIPT, "only one")
    assert done.returncode == 2 and "usage: bash pack_slurm.sh SRC OUT" in done.stderr
