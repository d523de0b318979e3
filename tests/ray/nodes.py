"""The nodes of a Ray cluster on this machine, and the processes of Ray that pack a shard."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from ray.cluster_utils import Cluster

N_NODES = 3
# A lost node is noticed after a few seconds, not after half a minute.
HEALTH = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000, "health_check_failure_threshold": 6,
}
# Waits are only limited so that a test that hangs ends.
LIMIT_S = 1200


class Nodes:
    """A cluster whose head runs no tasks, with N_NODES nodes of one CPU each."""

    def __init__(self):
        options = {"node_ip_address": "127.0.0.1"}
        self.cluster = Cluster(initialize_head=True, head_node_args={
            "num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH, **options,
        })
        self.nodes = [
            self.cluster.add_node(wait=False, num_cpus=1, **options) for _ in range(N_NODES)
        ]
        self.cluster.wait_for_nodes(LIMIT_S)

    @property
    def address(self):
        return self.cluster.address

    def writers(self, folder):
        """(node, process id) of each process that has an unfinished shard in this folder open, or
        a file without a name, as for a store."""
        for node in self.nodes:
            for pid in children(raylet(node)):
                if is_writing(pid, folder):
                    yield node, pid

    def stop_writer(self, folder, is_over):
        """Stops a process while it writes a shard. Returns (its node, its id), or None once
        ``is_over()``."""
        while not is_over():
            for node, pid in self.writers(folder):
                if state(pid) == "T":
                    continue  # was stopped by an earlier call
                os.kill(pid, signal.SIGSTOP)
                wait_for(lambda pid=pid: state(pid) in "TZX", "the process to stop")
                if is_writing(pid, folder):
                    return node, pid
                os.kill(pid, signal.SIGCONT)
        return None

    def lose(self, node):
        """Kills a node as if its machine were switched off. Its stopped processes stay."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def shutdown(self):
        self.cluster.shutdown()


def raylet(node):
    return node.all_processes["raylet"][0].process.pid


def children(pid):
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_writing(pid, folder):
    with suppress(OSError):
        for one in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = os.readlink(one.path)
                if path.startswith(f"{folder}/shard-") and path.endswith(".partial"):
                    return True
                if path.startswith(f"{folder}/") and path.endswith(" (deleted)"):
                    return True
    return False


def state(pid):
    """A letter: T, stopped; Z or X: ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def wait_for(is_so, what):
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, f"waited {LIMIT_S} s for {what}"
        time.sleep(0.005)
