# SPDX-License-Identifier: Apache-2.0
"""Arrays that claim to be on a GPU without one: lent through __dlpack__ with a stream, as CuPy 14 does. Their memory is
the host's, so only calls that are refused before a kernel may see them."""

from __future__ import annotations

import ctypes
import sys
import types
import unittest.mock

import numpy as np

CPU, CUDA = 1, 2  # DLPack device types


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class ndarray:
    """A NumPy array that imitates CuPy's. `device` is a context, as in CuPy; `told` records the streams it received."""

    def __init__(self, host, number=0, kind=CUDA, knows_versions=True):
        self.host, self.number, self.kind, self.knows_versions = host, number, kind, knows_versions
        self.shape, self.dtype, self.ndim = host.shape, host.dtype, host.ndim
        self.device = unittest.mock.MagicMock(id=number)
        self.told = []
        self._kept = []

    def __dlpack_device__(self):
        return self.kind, self.number

    def __dlpack__(self, *, stream=None, **named):
        if named and not self.knows_versions:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.told.append(stream)
        axes = ctypes.c_int64 * max(self.ndim, 1)
        shape = axes(*self.shape)
        strides = axes(*(n // self.host.itemsize for n in self.host.strides))
        tensor = _Tensor(self.host.ctypes.data, self.kind, self.number, self.ndim, {"f": 2, "i": 0}[self.dtype.kind],
                         8 * self.dtype.itemsize, 1, shape, strides, 0)
        versioned = bool(named)
        made = _Versioned(1, 0, None, None, 0, tensor) if versioned else _Managed(tensor, None, None)
        self._kept += [made, shape, strides]
        return _new(ctypes.addressof(made), b"dltensor_versioned" if versioned else b"dltensor", None)

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.host.dtype.str, "data": (self.host.ctypes.data, False),
                "version": 3, "strides": None, "stream": 1}


ndarray.__module__ = "cupy"


def cupy(stream=0, number=0):
    """The fake module for the duration of a test: `with standin.cupy(stream=7) as cupy`."""
    module = types.ModuleType("cupy")
    module.ndarray = ndarray
    module.empty = lambda shape, dtype: ndarray(np.zeros(shape, dtype), number)
    module.cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=stream))

    class Patch:
        def __enter__(self):
            self.patch = unittest.mock.patch.dict(sys.modules, {"cupy": module})
            self.patch.start()
            return module

        def __exit__(self, *_):
            self.patch.stop()

    return Patch()
