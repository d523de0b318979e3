"""A pool of memory blocks for native batches, reused when nothing refers to them any more."""

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
    """The memory of one batch.

    Attributes:
        number: unique in this process.
        fd: file descriptor of the memory if it is shared with other processes; else -1.
        memory: the mapping.
    """

    def __init__(self, number: int, n_bytes: int, shared: bool) -> None:
        self.number = number
        self.fd = shared_memory(n_bytes) if shared else -1
        self.memory = mmap.mmap(self.fd, n_bytes)

    def __del__(self) -> None:
        # Only the descriptor is closed: the mapping stays as long as a tensor refers to it.
        if getattr(self, "fd", -1) >= 0:
            try:
                os.close(self.fd)
            except (AttributeError, TypeError):  # the interpreter is shutting down
                pass


def shared_memory(n_bytes: int) -> int:
    """The file descriptor of new anonymous shared memory."""
    try:
        fd = os.memfd_create("feedmill-batch")
    except OSError:  # forbidden by some containers' seccomp rules
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, n_bytes)
        # A lack of memory must raise here. Without this, a later write would cause SIGBUS.
        os.posix_fallocate(fd, 0, n_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


class BlockPool:
    """Allocates the memory of native batches. Thread-safe.

    ``allocate`` is an allocator for ``Config.alloc``. The native loader returns the owner of a
    batch's memory with the batch. The block is reused when neither the owner nor any tensor made
    from it is left.

    Pickles and copies as an empty pool.

    Args:
        shared: whether other processes can map the memory.

    Attributes:
        n_blocks: number of blocks made so far.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self.n_blocks = 0
        # The garbage collector appends to it at any time, without a lock.
        self._free: deque[Block] = deque()
        self._outstanding: dict[int, tuple[Block, Any]] = {}
        # A forked child starts empty: the parent still writes to the shared blocks.
        renew_after_fork(self, _lock=threading.Lock, _free=deque, _outstanding=dict)

    def __reduce__(self) -> tuple[type[BlockPool], tuple[bool]]:
        return (BlockPool, (self._shared,))

    def allocate(self, n_bytes: int) -> tuple[int, torch.Tensor]:
        """Allocates uninitialized memory: (address, the tensor of bytes that owns it)."""
        with self._lock:
            block = None
            while self._free and block is None:
                block = self._free.popleft()
                if len(block.memory) != n_bytes:  # from batches of another size: dropped
                    block = None
            if block is None:
                self.n_blocks += 1
                block = Block(self.n_blocks, n_bytes, self._shared)
            # All tensors made from the owner refer to this array: its end means that none is left.
            root = np.frombuffer(block.memory, np.uint8)
            owner = torch.from_numpy(root)
            address = owner.data_ptr()
            free, outstanding = self._free, self._outstanding

            def give_back(_root: Any) -> None:
                outstanding.pop(address, None)
                free.append(block)

            outstanding[address] = (block, weakref.ref(root, give_back))
        return address, owner

    def block_of(self, owner: torch.Tensor) -> Block:
        """The block of an owner's memory."""
        return self._outstanding[owner.data_ptr()][0]
