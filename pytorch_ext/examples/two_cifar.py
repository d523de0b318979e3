"""Two trainings side by side on one machine: cifar10_classifier.py twice, as separate processes.

    python two_cifar.py --download
    python two_cifar.py --smoke

Each line of theirs comes with a 1 or a 2 in front. Each loader finds the other one and says so in
its report; `feedmill doctor`, in a third terminal, shows both.
"""

import argparse
import subprocess
import sys
import threading
from pathlib import Path

SCRIPT = Path(__file__).with_name("cifar10_classifier.py")


def pass_on(number, stream):
    for line in stream:
        print(f"{number} | {line}", end="", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description="two CIFAR-10 classifiers at once; other options are those of both"
    )
    parser.add_argument("--save", default="./cifar_net_{}.pth", help="{} becomes 1 and 2")
    args, others = parser.parse_known_args()
    processes, threads = [], []
    for number in (1, 2):
        process = subprocess.Popen(
            [sys.executable, SCRIPT, "--save", args.save.format(number), *others],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        processes.append(process)
        threads.append(threading.Thread(target=pass_on, args=(number, process.stdout)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
