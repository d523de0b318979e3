"""Instructions per pixel of each kernel, of x86-64 and of AArch64, as a Markdown table.

Both are counted by a plug-in of qemu's user mode emulation, so that neither processor is needed.
A count is the difference between 21 runs of a kernel and 1 run, by 20. It says nothing about speed:
instructions differ in what they take, and processors in how many of them they execute at a time.

usage: count_instructions.py, after make test-c and make test-aarch64 have built both
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 20


def count(command: list[str], plugin: Path, kernel: str, tier: str, runs: int) -> tuple[int, int]:
    """Instructions of the program, and pixels of a run."""
    done = subprocess.run(
        [command[0], "-plugin", str(plugin), *command[1:], kernel, tier, str(runs)],
        capture_output=True, text=True, check=True,
    )
    counted = next(line for line in done.stderr.splitlines() if line.startswith("instructions:"))
    return int(counted.split()[1]), int(done.stdout)


def per_px(command: list[str], plugin: Path, kernel: str, tier: str) -> float:
    once, n_px = count(command, plugin, kernel, tier, 1)
    often, _ = count(command, plugin, kernel, tier, RUNS + 1)
    return (often - once) / RUNS / n_px


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--x86", type=Path, default=ROOT / "build")
    parser.add_argument("--aarch64", type=Path, default=ROOT / "build-aarch64")
    args = parser.parse_args()
    program = Path("benchmarks/count_kernels")
    x86 = ["qemu-x86_64", "-cpu", "Nehalem", str(args.x86 / program)]
    arm = ["qemu-aarch64", "-L", str(args.aarch64 / "sysroot"), str(args.aarch64 / program)]
    kernels = subprocess.run([str(args.x86 / program)], capture_output=True, text=True, check=True)
    columns = [(x86, "scalar"), (x86, "sse41"), (arm, "scalar"), (arm, "neon")]
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder) / "count.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(plugin),
                        str(ROOT / "benchmarks/count_plugin.c")], check=True)
        print("| | x86-64, scalar | SSE4.1 | AArch64, scalar | NEON |")
        print("|---|---:|---:|---:|---:|")
        for kernel in kernels.stdout.splitlines():
            counts = [per_px(command, plugin, kernel, tier) for command, tier in columns]
            print(f"| {kernel} |", " | ".join(f"{one:.1f}" for one in counts), "|", flush=True)


if __name__ == "__main__":
    main()
