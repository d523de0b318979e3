"""Batches from torch's worker processes to the main process through memory that is reused.

May import: collate, system.

torch makes new shared memory for each tensor of each batch, and sends a file descriptor for it. A
worker process that called ``install_in_worker()`` keeps the memory of its batches (``slots``),
collates into it (``placing``), and sends only its number (``sending``). The main process maps it
once and tells the worker, through ``control``, when no tensor in it is left (``received``).
"""

from __future__ import annotations

from typing import Any


def install_in_worker(results: Any, places_samples: bool = False) -> str:
    """Makes this worker process of torch's DataLoader hand its batches over in reused memory.

    To be called before torch's main function of a worker. Batches, types, sharing between
    processes, and errors stay torch's. What can't be sent in this way is sent in torch's.

    Also makes malloc() keep freed memory, so that the tensors of each batch don't need new pages.

    Args:
        results: the queue to which the worker puts its batches (``data_queue`` of torch's
            ``_worker_loop``, its fourth argument).
        places_samples: whether samples may be copied to their batch's memory when they are made.
            The caller must use placing_queue() then.

    Returns:
        The reason why batches are handed over in torch's way; "" if they are not.
    """
    from feedmill.handover import sending

    return sending.install(results, places_samples)


def placing_queue(indices: Any) -> Any:
    """The queue of indices that a worker process must use after install_in_worker(): the samples of
    its batches are copied to the batch's memory as soon as they are made, if that is possible.

    Args:
        indices: torch's queue (``index_queue`` of torch's ``_worker_loop``).
    """
    from feedmill.handover import sending

    return sending.placing_queue(indices)
