"""The words of a report: what a wait can be made of, as a person calls it, and what it means."""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """A word and its meaning, one sentence; `remedy` is what makes that part of a step shorter."""

    label: str
    meaning: str
    remedy: str = ""


_CAUSES = {
    "storage_ns": Term(
        "storage",
        "Its file was still being read, or was next to be read.",
        "faster or nearer storage, smaller files, more batches ahead (prefetch_factor)",
    ),
    "cpu_queue_decode_ns": Term(
        "queue for decode",
        "It had its bytes, and all decode threads were decoding other images.",
        "more decode threads (num_workers, threads) where cores are free, or smaller images",
    ),
    "cpu_queue_transform_ns": Term(
        "queue for transform",
        "It had its bytes, and all decode threads were resizing and normalizing other images.",
        "more decode threads where cores are free, or a smaller output",
    ),
    "decode_ns": Term(
        "decode",
        "It was being decoded itself, and was the batch's last.",
        "smaller images; large single ones show among the slowest samples",
    ),
    "transform_ns": Term(
        "transform",
        "It was being resized, flipped, normalized and stored, and was the batch's last.",
        "a smaller output",
    ),
    "slot_wait_ns": Term(
        "no free slot",
        "It had its bytes, and all batch buffers were in use: the script holds on to batches.",
        "drop batches earlier, or a larger prefetch_factor or memory_budget",
    ),
    "h2d_ns": Term(
        "copy to GPU",
        "Its batch was being copied to the GPU.",
        "pinned memory (pin_memory=True), a smaller dtype",
    ),
    "starved_ns": Term(
        "no core",
        "A decode thread had work, and no core to do it on: other threads, processes, or a quota.",
        "fewer threads elsewhere, or more cores; more decode threads would not help",
    ),
    "python_ns": Term(
        "Python",
        "Python code was at work: torch's own workers, the sampler, or Pillow for a file that is "
        "not decoded natively.",
        "a native path (loader.explain() says what stands in its way), ordinary JPEGs",
    ),
    "unattributed_ns": Term("not known", "None of the other causes could be shown."),
}


def cause(name: str, path: str = "native") -> Term:
    """The term of a field of records.CAUSES.

    Args:
        path: that of the loader; on "torch" and "watched" all that is known of a wait is that
            torch's workers had not delivered.
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
            "Threads had the batch's samples, and passed so much of their time in the transform.",
            "a cheaper transform, or one that runs natively; more threads, as far as it releases "
            "Python's lock",
        )
    fallback = Term(name.removesuffix("_ns").replace("_", " "), "")
    return _CAUSES.get(name, fallback)


COMPUTE = Term("compute", "The script's own work: from one batch's return to the next request.")
OVERHEAD = Term(
    "overhead", "The batch was ready, and next() had not returned: waking up, copying out, Python."
)

GENERAL = {
    "step": "One request for a batch: what the training loop does in a round.",
    "wait": "From the request until the batch was ready; 0 where it was ready already. Its parts "
            "are the causes below, which add up to it exactly.",
    "GPU stall": "Time for which the GPU had done all that was asked of it before a request for a "
                 "batch, and had nothing more to do, as the batch was late or still being copied. "
                 "By the GPU's own clock: while a step waits, the GPU may well be at work.",
    "cause": "What the batch's last finished sample was waiting for, while the step waited.",
    "first, boundary, steady": "The loader's first step, the first one of a later epoch, and all "
                               "others.",
    "ready batches": "Batches that were finished when a step asked. 0 means that it had to wait; "
                     "the more, the further the loader is ahead.",
    "p50, p90, p99": "Half (90 %, 99 %) of the steps waited no longer than this.",
}
