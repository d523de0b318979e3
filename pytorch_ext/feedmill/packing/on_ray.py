"""Writes the shards of a pack as tasks of a Ray cluster. The only file that imports Ray."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from feedmill.packing.index import PackError
from feedmill.packing.node import Result, Site, payload_of, version
from feedmill.packing.source import Source
from feedmill.packing.targets import Target, is_folder, target_of
from feedmill.packing.writer import Layout, Options, Tally, is_complete, shard_name
from feedmill.remote.names import is_fsspec_name, may_have_secret, shown
from feedmill.remote.settings import read_settings
from feedmill.remote.sources import is_remote

# How often a shard is tried before it fails for good.
MAX_ATTEMPTS = 5
# Shards that wait for a free CPU, per shard that is being written: no node runs out of work.
_QUEUED_PER_RUNNING = 2
_POLL_S = 1.0
# Longest wait for all nodes to say what they see. What they see is checked again with each shard.
_CHECK_S = 120.0
# Longest wait for unfinished tasks to see that they should stop, and to remove their files.
_STOP_S = 20.0
_CONNECT_S = 10.0
# Only arguments go through the object store, about 1 MB for a shard.
_OBJECT_STORE_BYTES = 256 << 20


def write_shards_on_ray(
    source: Source,
    out: str | os.PathLike[str],
    options: Options,
    *,
    address: str = "",
    workers: int | None = None,
    update: Callable[[int], Any] = lambda n: None,
    say: Callable[[str], Any] = lambda text: None,
) -> Tally:
    """Writes all shards of a pack, as write_shards() does, on the nodes of a Ray cluster.

    Each shard is a task. A task whose process or node is lost runs again on another node; the same
    goes for errors of a file system that may not come again. Complete shards are kept. If this
    function raises, unfinished tasks are stopped; the next call writes what is missing.

    Args:
        out: name of the target, as for target_of().
        address: host:port of the cluster; "local": a new one on this machine, for this call only;
            empty: RAY_ADDRESS, else a cluster that this machine belongs to, else "local".
        workers: number of threads of a task; None: so many that the shards use all CPUs.
        update: called with the number of samples that were finished since the last call.
        say: called with messages about lost nodes and shards that are tried again.

    Raises:
        PackError: a node does not see the folders or the store, a shard failed for good, or as
            write_shards().
        ValueError: the cluster can't be reached, or has no node for a task; or the name of the
            target has a password.
        OSError: the target can't be read or written.
    """
    out = os.fspath(out)
    if is_folder(out):
        out = os.path.abspath(out)
    elif is_fsspec_name(out) and may_have_secret(out):
        raise ValueError(
            f"{shown(out)}: with --ray the name may have no password or token, which would be sent "
            "to the nodes: use fsspec's configuration on each node"
        )
    target = target_of(out)
    layout = Layout(source, options)
    tally, missing = Tally(), []
    for number in range(len(layout)):
        if is_complete(target, number, layout.digest):
            n = layout.n_samples(number)
            tally.add(Tally(samples=n, shards=1, kept=1))
            update(n)
        else:
            missing.append(number)
    if not missing:
        return tally
    with _connected(address), _marker(target) as marker:
        site = Site(_checked_paths(source), out, read_settings(), marker)
        _check_nodes(site, options)
        workers = _workers(workers, len(missing))
        run = _Run(layout, site, target, replace(options, workers=workers), update, say)
        tally.add(run.write(missing))
    return tally


def _checked_paths(source: Source) -> list[str]:
    """Paths of the source that each node must see: one of each folder. Objects are not asked for:
    their samples' errors tell."""
    paths = [path for path in source.paths if not is_remote(path)]
    return list({os.path.dirname(path): path for path in paths}.values())


@contextmanager
def _marker(target: Target) -> Iterator[str]:
    """Keeps a file with a random name in the target. Tasks stop when it is gone. join_shards()
    removes it after a crash."""
    name = f"nodes.{secrets.token_hex(8)}.partial"
    target.write(name, b"")
    try:
        yield name
    finally:
        target.remove(name)  # if _Run has not


# ---- the cluster ---------------------------------------------------------------------------------


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connects to a cluster, unless this process is connected already. Raises ValueError."""
    if ray.is_initialized():
        yield
        return
    # Ray sets a handler of its own.
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main_thread else None
    try:
        _connect(address or os.environ.get("RAY_ADDRESS", ""))
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
        yield
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address.startswith("ray://"):
        raise ValueError(
            f"{address}: Ray Client is not supported; run this command on a node of the cluster, "
            "or submit it as a job: ray job submit -- feedmill pack SRC OUT --ray"
        )
    try:
        if address in ("", "auto"):
            try:
                ray.init("auto", **quiet)
                return
            except ConnectionError:
                if address:
                    raise
        if address in ("", "local"):
            ray.init("local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES,
                     **quiet)
            return
        _check_port(address)
        ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        where = f"at {address}" if address else "on this machine"
        raise ValueError(
            f"can't connect to Ray {where}: {error}. This machine must be a node of the cluster, "
            "with the same versions of Ray and Python"
        ) from None


def _check_port(address: str) -> None:
    """Raises OSError or ValueError if nothing listens there. Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("the address must be host:port, such as 10.0.0.1:6379")
    host = host.strip("[]")
    hosts = [host]
    if host in ("localhost", "127.0.0.1", "::1"):
        hosts.append(ray.util.get_node_ip_address())  # which Ray uses in place of these
    for one in hosts:
        socket.create_connection((one, int(port)), _CONNECT_S).close()


def _nodes() -> dict[str, dict[str, Any]]:
    """The nodes that can run tasks, by their id."""
    return {
        one["NodeID"]: one for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU")
    }


def _cpus(node: dict[str, Any]) -> int:
    return int(node["Resources"]["CPU"])


def _node_text(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _workers(workers: int | None, n_shards: int) -> int:
    """Number of threads, and so of CPUs, of a task. Raises ValueError if no node has so many."""
    cpus = [_cpus(node) for node in _nodes().values()]
    if not cpus:
        raise ValueError("no node of the Ray cluster has a CPU for tasks (see `ray status`)")
    if workers is None:
        return max(1, min(min(cpus), sum(cpus) // n_shards))
    if workers > max(cpus):
        raise ValueError(f"--workers {workers}: no node of the Ray cluster has so many CPUs, the "
                         f"largest has {max(cpus)}")
    return workers


def _check_nodes(site: Site, options: Options) -> None:
    """Lets all nodes check what they see. Raises PackError, which names the first that lacks
    something. A node that does not answer is left out."""
    payload = payload_of(site, None, options)
    task = _task()
    waiting = [
        task.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(version(), payload)
        for node in _nodes()
    ]
    done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=_CHECK_S)
    for ref in done:
        try:
            node, fields = ray.get(ref)
        except RayTaskError as error:
            raise PackError(f"a node of the Ray cluster failed: {_cause(error)}") from None
        except RayError:
            continue  # the node was lost
        if problem := Result(*fields).error:
            raise PackError(f"the node {node} {problem}")


def _task() -> Any:
    """The function that runs on a node. Ray sends its code, as it is nested, so that a node without
    feedmill can say so. For the same reason its argument is pickled already."""
    def pack_shard(wanted_version: str, payload: bytes) -> Any:
        node = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
        try:
            from feedmill.packing.node import run
        except ImportError as error:
            text = f"can't import feedmill: {error}; install it on all nodes"
            return node, (None, text, True)
        return node, run(wanted_version, payload)

    # Retries are this file's own: Ray's are not told to the user.
    return ray.remote(max_retries=0, scheduling_strategy="SPREAD")(pack_shard)


def _cause(error: BaseException) -> str:
    """An error of Ray as one line."""
    cause = getattr(error, "cause", None) or error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0] if text else ''}"


# ---- the run -------------------------------------------------------------------------------------


class _Run:
    """The tasks of one run, until all shards are written."""

    def __init__(
        self, layout: Layout, site: Site, target: Target, options: Options,
        update: Callable[[int], Any], say: Callable[[str], Any],
    ) -> None:
        self._layout, self._site, self._target, self._options = layout, site, target, options
        self._update, self._say = update, say
        self._task = _task().options(num_cpus=options.workers)
        self._tally = Tally()
        self._attempts: Counter[int] = Counter()
        self._waiting: deque[int] = deque()  # numbers of shards
        self._running: dict[Any, int] = {}  # task -> number of its shard
        self._nodes = _nodes()

    def write(self, numbers: list[int]) -> Tally:
        """Writes these shards. Raises PackError if one of them fails for good."""
        self._waiting.extend(numbers)
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._limit():
                    self._start(self._waiting.popleft())
                done, _ = ray.wait(list(self._running), num_returns=1, timeout=_POLL_S)
                for task in done:
                    self._finish(task)
                self._watch_nodes()
        finally:
            self._stop()
        return self._tally

    def _limit(self) -> int:
        """Most tasks that are queued or running at a time."""
        slots = sum(_cpus(node) // self._options.workers for node in self._nodes.values())
        return _QUEUED_PER_RUNNING * max(1, slots)

    def _start(self, number: int) -> None:
        self._attempts[number] += 1
        payload = payload_of(self._site, self._layout.job(number), self._options)
        self._running[self._task.remote(version(), payload)] = number

    def _finish(self, task: Any) -> None:
        number = self._running.pop(task)
        node, result = "", Result(None)
        try:
            node, fields = ray.get(task)
            result = Result(*fields)
        except (RayTaskError, TaskUnschedulableError) as error:
            result = Result(None, _cause(error))
        except RayError as error:
            result = Result(None, f"its process or node was lost: {_cause(error)}", may_retry=True)
        if result.of_node:
            raise PackError(f"the node {node} {result.error}")
        if result.tally is not None:
            self._tally.add(result.tally)
            self._update(result.tally.samples)
            return
        where = f" on {node}" if node else ""
        attempts = self._attempts[number]
        text = f"{shard_name(number)} failed{where}: {result.error}"
        if not result.may_retry or attempts == MAX_ATTEMPTS:
            tries = f" after {attempts} attempts" if attempts > 1 else ""
            raise PackError(text.replace(" failed", f" failed for good{tries}", 1))
        self._say(f"{text}; it is tried again (attempt {attempts + 1} of {MAX_ATTEMPTS})")
        self._waiting.appendleft(number)

    def _watch_nodes(self) -> None:
        now = _nodes()
        for name in self._nodes.keys() - now.keys():
            self._say(f"the node {_node_text(self._nodes[name])} was lost; {len(now)} left")
        if self._nodes and not now:
            self._say("no node is left; waiting for one (Ctrl-C ends this, and the same command "
                      "continues later)")
        self._nodes = now

    def _stop(self) -> None:
        """Ends all tasks, and waits until they have removed their unfinished files.

        Not by ray.cancel(): in Ray 2.60 a task that ends while it is cancelled aborts this process
        ("Tried to complete task that was not pending").
        """
        if not self._running:
            return
        self._say(f"waiting up to {_STOP_S:.0f} s for {len(self._running)} unfinished tasks to "
                  "end")
        self._target.remove(self._site.marker)
        ray.wait(list(self._running), num_returns=len(self._running), timeout=_STOP_S)
