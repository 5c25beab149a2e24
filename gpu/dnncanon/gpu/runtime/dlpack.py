"""DLPack capsules, read and made through ctypes: no copy, bfloat16 included, any library.

The structures are those of https://github.com/dmlc/dlpack (``DLManagedTensor``, the unversioned
capsule named "dltensor", which every library reads and writes).
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.gpu.runtime.errors import DeviceError
from dnncanon.spec import DTYPES, dense_strides

CPU = (1, 0)
CUDA = 2
CUDA_HOST = 3
_NAME, _USED = b"dltensor", b"used_dltensor"

# DLDataTypeCode of DLPack 1.1: kDLInt 0, kDLUInt 1, kDLFloat 2; those of single types by name.
_KINDS = {0: "i", 1: "u", 2: "f"}
_CODES = {"i": 0, "u": 1, "f": 2}
_NAMED = {
    "bfloat16": 4,
    "bool": 6,
    "float8_e4m3fn": 10,
    "float8_e5m2": 12,
    "float8_e8m0fnu": 14,
}
_BY_CODE = {code: DTYPES[name].numpy for name, code in _NAMED.items()}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
)

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _api(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, arguments
    return function


_new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# The destructor of a capsule must not create a reference to it: it is being deleted.
_is_valid_raw = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_raw = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Imported:
    """What a capsule holds; ``owner`` gives the memory back to its library when it is deleted."""

    owner: object
    pointer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: tuple[int, int]


class _Owner:
    """Calls the deleter of an imported tensor, once."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __del__(self) -> None:
        managed = ctypes.cast(self.address, ctypes.POINTER(_Managed))
        if managed.contents.deleter:
            managed.contents.deleter(managed)


def import_capsule(capsule: object) -> Imported:
    """Take over the tensor in a capsule that ``__dlpack__`` returned."""
    address = _pointer(capsule, _NAME)
    _rename(capsule, _USED)
    owner = _Owner(address)
    tensor = _Managed.from_address(address).tensor
    shape = tuple(tensor.shape[dim] for dim in range(tensor.ndim))
    given = bool(tensor.strides)
    strides = (
        tuple(tensor.strides[d] for d in range(tensor.ndim)) if given else dense_strides(shape)
    )
    return Imported(
        owner=owner,
        pointer=(tensor.data or 0) + tensor.byte_offset,
        dtype=_read_dtype(tensor.dtype),
        shape=shape,
        strides=strides,
        device=(tensor.device.type, tensor.device.index),
    )


def _read_dtype(dtype: _DataType) -> np.dtype[Any]:
    named = _BY_CODE.get(dtype.code)
    if named is not None and dtype.lanes == 1 and dtype.bits == 8 * named.itemsize:
        return named
    if dtype.lanes != 1 or dtype.code not in _KINDS:
        raise DeviceError(f"DLPack type {dtype.code} with {dtype.lanes} lanes has no NumPy dtype")
    result: np.dtype[Any] = np.dtype(f"{_KINDS[dtype.code]}{dtype.bits // 8}")
    return result


# Exported tensors by the address of their structure, until the consumer calls the deleter.
_exported: dict[int, tuple[object, ...]] = {}


def _forget(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


def _delete_unused(capsule: int) -> None:
    """Free a tensor whose capsule dies without having been taken over."""
    if _is_valid_raw(capsule, _NAME):
        _exported.pop(_pointer_raw(capsule, _NAME), None)


# Kept for the life of the process: consumers call them at any time.
_deleter, _destructor = _Deleter(_forget), _Destructor(_delete_unused)


def _code(dtype: np.dtype[Any]) -> int:
    if dtype.kind not in _CODES:
        raise BufferError(f"DLPack has no word for {dtype.name}; pass the array's bytes instead")
    return _CODES[dtype.kind]


def export_capsule(
    owner: object,
    pointer: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    device: tuple[int, int],
) -> object:
    """A capsule for memory that ``owner`` keeps alive; ``strides`` count elements."""
    code = _NAMED[dtype.name] if dtype.name in _NAMED else _code(dtype)
    extents = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))(*strides)
    managed = _Managed(
        _Tensor(
            pointer,
            _Device(*device),
            len(shape),
            _DataType(code, dtype.itemsize * 8, 1),
            extents,
            steps,
            0,
        ),
        None,
        _deleter,
    )
    address = ctypes.addressof(managed)
    _exported[address] = (managed, extents, steps, owner)
    return _new(address, _NAME, _destructor)
