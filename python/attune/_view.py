# SPDX-License-Identifier: Apache-2.0
"""Library memory for from_dlpack of any framework, and the names of dtypes and devices."""

from __future__ import annotations

from typing import Any, Callable

from . import _core

_DTYPES = {"float64": 1, "float32": 2, "float16": 3, "bfloat16": 4, "f64": 1, "f32": 2, "f16": 3, "bf16": 4}


def dtype_number(dtype: Any) -> int:
    """The library's number for a dtype, given a name or a framework's dtype ("float32", torch.float32, numpy.float32).
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
    if name not in _DTYPES:
        raise _core.Error(f"attune: dtype {dtype} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


class View:
    """Memory owned by a cache or a module: torch.from_dlpack(view), numpy.from_dlpack(view). It is read and written in
    place, and keeps its owner alive. A reader on another stream must wait for the owner's stream."""

    def __init__(self, take: Callable[[bool], object]) -> None:
        self._take = take

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("attune: this memory is lent where it is, not copied")
        return self._take(max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _core.capsule_device(self._take(True))
