"""vLLM's ExampleHiddenStatesConnector for a machine without a GPU: no streams, no pinned memory.

What enters: the hidden states of finished requests in vLLM's cache. What leaves: one safetensors
file a request. Loaded by vLLM 0.32 through kv_connector_module_path, with this folder in
PYTHONPATH; the stock connector needs pinned memory and dies on a CPU.
"""

from __future__ import annotations

import fcntl
import os
from functools import partial
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class Done:
    """An event that has happened."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Always."""
        return True


class CPUHiddenStatesConnector(ExampleHiddenStatesConnector):
    """Copies out of the cache at once, writes on a thread as the stock one does."""

    def _submit_async_write(self, pending: Any) -> None:
        if not self._is_tp_rank_zero:
            return
        ids = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (torch.arange(self._block_size)[None] + ids[:, None] * self._block_size).flatten()
        count = pending.token_ids.shape[0]
        states = extract_from_kv_cache(self._kv_cache, slots, count).clone().contiguous()
        tensors = {"hidden_states": states, "token_ids": pending.token_ids.clone()}
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)  # noqa: PTH103, PTH120
        lock = self._lock_fds.pop(pending.req_id, None)
        if lock is None and self.use_lock:
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
            lock = os.open(pending.filename + ".lock", flags, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        future = self._executor.submit(self._write_tensors, tensors, Done(), pending.filename, lock)
        self._req_copy_events[pending.req_id] = Done()
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))
