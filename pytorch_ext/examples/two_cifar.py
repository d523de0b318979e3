"""Runs two trainings on one machine: cifar10_classifier.py twice, as separate processes.

    python two_cifar.py --download
    python two_cifar.py --smoke

Each line of output begins with a 1 or a 2, the number of the training. Each loader detects the
other process and names it in its report; `feedmill doctor`, in a third terminal, shows both.
"""

import argparse
import subprocess
import sys
import threading
from pathlib import Path

SCRIPT = Path(__file__).with_name("cifar10_classifier.py")


def print_lines(number, stream):
    for line in stream:
        print(f"{number} | {line}", end="", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description="Runs two CIFAR-10 classifiers at once. All other options are passed to both."
    )
    parser.add_argument("--save", default="./cifar_net_{}.pth", help="{} is replaced by 1 and 2")
    args, others = parser.parse_known_args()
    processes, threads = [], []
    for number in (1, 2):
        process = subprocess.Popen(
            [sys.executable, SCRIPT, "--save", args.save.format(number), *others],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        processes.append(process)
        threads.append(threading.Thread(target=print_lines, args=(number, process.stdout)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
