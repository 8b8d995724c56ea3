# SPDX-License-Identifier: Apache-2.0
"""One sequence over the ranks of a torch.distributed group: docs/ring.md.

    from attune.torch import attend, distributed
    distributed.connect()
    rows = distributed.tokens("zigzag", 32768)                           # of this rank
    out = attend(q[:, rows], k[:, rows], v[:, rows], causal=True, **distributed.options("zigzag", 32768))

Messages go through a gloo group over host memory, even for GPU tensors; connect(by="nccl") sends them from GPU to GPU.
"""

from __future__ import annotations

import ctypes
import datetime
from typing import Any, Literal

import torch
import torch.distributed as dist

from .. import _core
from .._spec import Options

__all__ = ["connect", "disconnect", "options", "tokens"]

_group: Any = None


def _start(transfers: list[tuple[int, bool, int, int]]) -> list[Any]:
    works = []
    for peer, is_receive, address, size in transfers:
        if not size:
            continue
        memory = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
        to = dist.get_global_rank(_group, peer)
        works.append((dist.irecv if is_receive else dist.isend)(memory, to, group=_group))
    return works


def _finish(works: list[Any], seconds: float) -> None:
    for work in works:
        work.wait(datetime.timedelta(seconds=seconds))


def connect(group: Any = None, *, by: Literal["gloo", "nccl"] = "gloo", seconds: float = 60) -> None:
    """Makes this process a rank of the group (None: all processes), for attend with variant="ring ...". Every rank of
    the group must call it, and no others. A rank that waits longer than `seconds` for the others gets an error.

    by="gloo": a group with another backend gets an additional gloo group of the same ranks, and messages go over host
    memory. by="nccl": messages go from GPU to GPU with NCCL, each rank on its current device; a rank then waits for 60
    s, whatever `seconds` is. The group is used to connect the ranks."""
    global _group
    if not dist.is_initialized():
        raise _core.Error("attune: torch.distributed is not initialised: init_process_group comes first")
    if by not in ("gloo", "nccl"):
        raise _core.Error(f"attune: ranks are connected by gloo or nccl, not {by!r}")
    group = group or dist.group.WORLD
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if by == "nccl":
        if not torch.cuda.is_available():
            raise _core.Error("attune: NCCL connects GPUs, and there is none here")
        _core.connect_nccl(_told(group, rank), rank, ranks, f"cuda:{torch.cuda.current_device()}")
    else:
        if dist.get_backend(group) != "gloo":
            group = _beside(group, seconds)
        _core.connect(rank, ranks, _start, _finish)
    _group = group


_ROOM = 1024  # bytes for the first rank's message


def _told(group: Any, rank: int) -> bytes:
    """The name under which ranks meet, made by the first rank. Sent as a tensor, because torch.distributed needs NumPy
    to send an object."""
    word = b""
    if rank == 0:
        try:
            word = b"+" + _core.nccl_id()
        except _core.Error as error:  # the others wait for this message and receive the error
            word = b"-" + str(error).encode()[:_ROOM - 3]
    sent = [len(word) >> 8, len(word) & 255, *word]
    memory = torch.tensor(sent + [0] * (_ROOM - len(sent)), dtype=torch.uint8,
                          device="cuda" if dist.get_backend(group) == "nccl" else "cpu")
    dist.broadcast(memory, dist.get_global_rank(group, 0), group=group)
    high, low, *told = memory.tolist()
    sign, *told = told[:high << 8 | low]
    if sign == ord("-"):
        raise _core.Error(bytes(told).decode(errors="replace"))
    return bytes(told)


def _beside(group: Any, seconds: float) -> Any:
    """A gloo group of the same ranks, which torch.distributed names by them and by the number of groups made before."""
    limit = datetime.timedelta(seconds=seconds)
    try:
        return dist.new_group(dist.get_process_group_ranks(group), timeout=limit, backend="gloo",
                              use_local_synchronization=True)
    except RuntimeError as error:  # including torch.distributed.DistError
        raise _core.Error(f"attune: not every rank of the group connected in {seconds:g} s; all of them must, and must "
                          f"have made as many groups before: {error}") from error


def disconnect() -> None:
    """Undoes connect."""
    global _group
    _core.disconnect()
    _group = None


def _ranks() -> int:
    if _group is None:
        raise _core.Error("attune: no group is connected")
    return dist.get_world_size(_group)


def tokens(layout: str, count: int) -> list[int]:
    """Which of `count` tokens this rank holds, row by row: "ring", "zigzag", "striped", "ulysses"."""
    return _core.shard_tokens(layout, count, _ranks(), dist.get_rank(_group))


def options(layout: str, count: int) -> Options:
    """The options to pass to attend: the variant, and the largest number of rows of a rank."""
    ranks = _ranks()
    most = max(len(_core.shard_tokens(layout, count, ranks, rank)) for rank in range(ranks))
    return {"variant": f"ring layout={layout} ranks={ranks} tokens={count}", "max_q": most, "max_k": most}
