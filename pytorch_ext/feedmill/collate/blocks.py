"""Memory for native batches that is used again when nothing refers to it any more."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch

from feedmill.system.locks import renew_after_fork


class Block:
    """Memory of one batch.

    Attributes:
        number: no other block of this process has it.
        fd: of the memory, where it is shared with other processes; else -1.
    """

    def __init__(self, number: int, n_bytes: int, shared: bool) -> None:
        self.number = number
        self.fd = _shared_memory(n_bytes) if shared else -1
        self.memory = mmap.mmap(self.fd, n_bytes)

    def __del__(self) -> None:
        # The memory stays mapped for as long as a tensor refers to it.
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)


def _shared_memory(n_bytes: int) -> int:
    """A descriptor of memory that has no name."""
    try:
        fd = os.memfd_create("feedmill-batch")
    except OSError:  # a container's rules may forbid it
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, n_bytes)
        # Memory that is short must be an error here, not a SIGBUS where it is written to.
        os.posix_fallocate(fd, 0, n_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


class BlockPool:
    """Allocates the memory of native batches; may be used from several threads.

    ``allocate`` is an allocator for ``Config.alloc``: the native loader hands the owner of a
    batch's memory out with the batch, and the memory is free for another one when neither the owner
    nor anything made from it is left.

    Pickles and copies as an empty one.

    Args:
        shared: other processes can map the memory.

    Attributes:
        n_blocks: that were made so far.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self.n_blocks = 0
        # Appended to by the garbage collector, in the middle of anything: it takes no lock.
        self._free: deque[Block] = deque()
        self._lent: dict[int, tuple[Block, Any]] = {}
        # Shared memory is the parent's to write to, in the child of a fork as well.
        renew_after_fork(self, _lock=threading.Lock, _free=deque, _lent=dict)

    def __reduce__(self) -> tuple[type[BlockPool], tuple[bool]]:
        return (BlockPool, (self._shared,))

    def allocate(self, n_bytes: int) -> tuple[int, torch.Tensor]:
        """(address, the tensor of bytes that owns it). The content is anything."""
        with self._lock:
            block = None
            while self._free and block is None:
                block = self._free.popleft()
                if len(block.memory) != n_bytes:  # of batches as they were before
                    block = None
            if block is None:
                self.n_blocks += 1
                block = Block(self.n_blocks, n_bytes, self._shared)
            # numpy's array is what everything made from it refers to.
            root = np.frombuffer(block.memory, np.uint8)
            owner = torch.from_numpy(root)
            address = owner.data_ptr()
            free, lent = self._free, self._lent

            def give_back(_root: Any) -> None:
                lent.pop(address, None)
                free.append(block)

            lent[address] = (block, weakref.ref(root, give_back))
        return address, owner

    def block_of(self, owner: torch.Tensor) -> Block:
        """That in which an owner's memory lies."""
        return self._lent[owner.data_ptr()][0]
