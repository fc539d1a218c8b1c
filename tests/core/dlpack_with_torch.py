#!/usr/bin/env python3
"""Tensors that go from PyTorch to tutti and back by DLPack: dlpack_with_torch.py BRIDGE, the library of dlpack_bridge.cpp."""
import ctypes
import gc
import sys
import unittest

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

bridge = ctypes.CDLL(sys.argv.pop())
bridge.reversed_by_tutti.restype = ctypes.c_void_p
bridge.reversed_by_tutti.argtypes = [ctypes.c_void_p]
bridge.refusal_of_tutti.restype = ctypes.c_char_p
api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def reversed_by_tutti(tensor):
    capsule = to_dlpack(tensor)
    managed = api.PyCapsule_GetPointer(capsule, b"dltensor")
    api.PyCapsule_SetName(capsule, b"used_dltensor")  # its owner is tutti now
    result = bridge.reversed_by_tutti(managed)
    if result is None:
        raise ValueError(bridge.refusal_of_tutti().decode())
    return from_dlpack(api.PyCapsule_New(result, b"dltensor", None))


class DlpackWithTorch(unittest.TestCase):
    def test_values_strides_and_dtypes_survive_without_a_copy(self):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
            whole = torch.randint(0, 2, (4, 6, 10)).to(dtype)
            for x in (whole, whole[1:, ::2, 3:], whole.permute(1, 2, 0), whole[0, 0, 0], whole[:0]):
                y = reversed_by_tutti(x)
                self.assertEqual((y.dtype, y.data_ptr()), (dtype, x.data_ptr()))
                self.assertTrue(torch.equal(y, x.permute(tuple(reversed(range(x.dim()))))))

    def test_the_memory_lives_as_long_as_the_view(self):
        x = torch.arange(1000.0)
        y = reversed_by_tutti(x)
        x += 1
        del x
        gc.collect()
        others = [torch.zeros(1000) for _ in range(100)]
        self.assertTrue(torch.equal(y, torch.arange(1000.0) + 1), len(others))

    def test_a_dtype_that_tutti_lacks_is_refused(self):
        for dtype in (torch.int32, torch.complex64):
            with self.assertRaisesRegex(ValueError, "from_dlpack: .*dtype"):
                reversed_by_tutti(torch.zeros(3, dtype=dtype))


unittest.main()
