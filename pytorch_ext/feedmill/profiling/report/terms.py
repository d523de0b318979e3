"""The glossary of a report: the causes of a wait, their labels, meanings and remedies."""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """A term of a report.

    Attributes:
        label: the term.
        meaning: one sentence. "It" is the sample that the step waited for: the batch's last one to
            be finished.
        remedy: what makes this part of a step shorter. May be "".
    """

    label: str
    meaning: str
    remedy: str = ""


_CAUSES = {
    "storage_ns": Term(
        "storage",
        "Its file was being read, or was queued for reading.",
        "faster or local storage, smaller files, a larger prefetch_factor",
    ),
    "cpu_queue_decode_ns": Term(
        "queue for decode",
        "Its file had been read, but all decode threads were decoding other images.",
        "more decode threads (num_workers, threads) if CPUs are free, or smaller images",
    ),
    "cpu_queue_transform_ns": Term(
        "queue for transform",
        "Its file had been read, but all decode threads were transforming other images.",
        "more decode threads if CPUs are free, or a smaller output size",
    ),
    "decode_ns": Term(
        "decode",
        "It was being decoded.",
        "smaller images; single large ones are listed among the slowest samples",
    ),
    "transform_ns": Term(
        "transform",
        "It was being resized, flipped, normalized or stored.",
        "a smaller output size",
    ),
    "slot_wait_ns": Term(
        "no free buffer",
        "All batch buffers were in use: the script keeps references to batches.",
        "release batches earlier, or a larger prefetch_factor or memory_budget",
    ),
    "h2d_ns": Term(
        "copy to GPU",
        "Its batch was being copied to the GPU.",
        "pinned memory (pin_memory=True), a smaller dtype",
    ),
    "starved_ns": Term(
        "waiting for CPU",
        "A decode thread had work but no CPU to run on, because of other threads or processes, or "
        "a CPU quota.",
        "fewer other threads, or more CPUs; more decode threads would not help",
    ),
    "python_ns": Term(
        "Python",
        "Python code was running: torch's own workers, the sampler, or Pillow for a file that is "
        "not decoded natively.",
        "the native path (loader.explain() says what prevents it), standard JPEGs",
    ),
    "unattributed_ns": Term("unknown", "None of the other causes was seen."),
}


_STORAGE_PARTS = {
    "storage_connect_ns": Term(
        "connecting",
        "A connection to the object store was being made: credentials, address, TCP, TLS.",
        "fewer loaders, each of which keeps its connections; an endpoint that is nearer",
    ),
    "storage_first_byte_ns": Term(
        "waiting for the first byte",
        "A request had been sent, and its response had not begun.",
        "more requests in flight (a larger prefetch_factor, FEEDMILL_REMOTE_REQUESTS); a nearer "
        "store; cache=",
    ),
    "storage_transfer_ns": Term(
        "transferring",
        "The response was being received.",
        "fewer bytes (smaller images; a pack, of which only the parts for a crop are read) or more "
        "bandwidth; cache=",
    ),
    "storage_retry_ns": Term(
        "retrying",
        "An attempt failed, or the next one had not begun yet.",
        "a server and a network with fewer errors: the server's log may tell",
    ),
    "storage_throttled_ns": Term(
        "throttled by the server",
        "The server had refused requests (HTTP 429 or 503), so that fewer were made.",
        "fewer loaders on the same bucket at a time; images spread over more key prefixes; cache=",
    ),
    "storage_local_ns": Term(
        "files",
        "A file was being read or was queued, or an object that needed no request.",
        "faster or local storage, smaller files, a larger prefetch_factor",
    ),
}


def storage_part(name: str) -> Term:
    """The term of a part of the wait for storage, a field of records.STORAGE_PARTS."""
    return _STORAGE_PARTS[name]


def cause(name: str, path: str = "native") -> Term:
    """The term of a cause.

    Args:
        name: a field of records.CAUSES.
        path: the loader's path. On "torch" and "watched" only the duration of a wait is known, not
            its cause.
    """
    if name == "python_ns" and path in ("torch", "watched"):
        return Term(
            "Python workers",
            "torch's own workers, or its process, had not delivered the batch.",
            _CAUSES[name].remedy,
        )
    if name == "python_ns" and path == "hybrid":
        return Term(
            "the transform",
            "The hybrid path's threads spent this share of their time in the Python transform.",
            "a cheaper transform, or one that runs natively; more threads, if it releases the GIL",
        )
    fallback = Term(name.removesuffix("_ns").replace("_", " "), "")
    return _CAUSES.get(name, fallback)


COMPUTE = Term("compute", "The training step itself: from one batch's return to the next request.")
OVERHEAD = Term(
    "overhead",
    "The batch was ready, but next() had not returned yet: waking up, copying, Python code.",
)

GENERAL = {
    "step": "One iteration of the training loop: a request for a batch, and the work on it.",
    "wait": "Time from the request until the batch was ready; 0 if it was ready already. The "
            "causes below add up to it exactly.",
    "GPU stall": "Time in which the GPU had finished all queued work and waited for the batch, "
                 "which was late or still being copied. Measured with CUDA events: while a step "
                 "waits on the host, the GPU may still be computing.",
    "cause": "What held up the sample that the step waited for: the batch's last one to be "
             "finished.",
    "first, boundary, steady": "The loader's first step, the first step of each later epoch, and "
                               "all other steps.",
    "ready batches": "Batches that were ready when a step requested one. 0 means that the step had "
                     "to wait.",
    "p50, p90, p99": "Half (90%, 99%) of the steps waited no longer than this.",
}
