"""Ends torch's iterators at once where the garbage collector finds them.

An iterator that is part of a reference cycle, such as that of a caught exception, lives until the
garbage collector runs, which may be in any later test. The collector closes the iterator's queues
first, so that its workers are not told to end: torch waits 5 s for each worker, and then terminates
it. Importing this module makes torch wait 50 ms instead.
"""

import functools

from torch.utils.data import _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Iterator

_end = Iterator.__del__


def _is_closed(queue):
    """Whether the thread that sends what is put into the queue has been told to end."""
    return queue._close is not None and not queue._close.still_active()


@functools.wraps(_end)
def _end_at_once(self):
    wait_s = _utils.MP_STATUS_CHECK_INTERVAL
    if any(map(_is_closed, getattr(self, "_index_queues", ()))):
        _utils.MP_STATUS_CHECK_INTERVAL = 0.05
    try:
        _end(self)
    finally:
        _utils.MP_STATUS_CHECK_INTERVAL = wait_s


Iterator.__del__ = _end_at_once
