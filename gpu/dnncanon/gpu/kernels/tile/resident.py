"""Products with an operand that stays: its slices are fetched once, and multiplied by others one by one.

    shared memory of a block:   │ slots of A, which come and go │ all slices of B, one behind the other │

What it is for: the recurrent matrix of a network, which every step multiplies by another state.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile import cuda_core, tensor_core
from dnncanon.gpu.kernels.tile.engine import Product
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32


@cache
def keep(product: Product) -> Callable[..., None]:
    """keep(kept, thread, b, of_b, limits, column, slices): fetch so many slices of B to address ``kept``.

    ``limits`` are columns and depth. They are there when it returns.
    """
    open_b, next_b, nbytes = product.fetch_b.open, product.fetch_b.next, product.unit.b.nbytes
    longs_of_b, ints_of_b = product.fetch_b.longs, product.fetch_b.ints

    @device_function
    def keep_(
        kept: Any, thread: Any, b: Any, of_b: Any, limits: Any, column: Any, slices: Any
    ) -> None:
        longs, ints = cuda.local.array(longs_of_b, _int64), cuda.local.array(ints_of_b, _int32)
        open_b(longs, ints, b, of_b, limits, column, _int32(0), thread)
        for number in range(slices):
            next_b(longs, ints, b, of_b, limits, kept + _uint32(number * nbytes), thread)
        ptx.cp_async_commit()
        ptx.cp_async_wait_all()
        cuda.syncthreads()

    return keep_


@cache
def accumulate_kept(product: Product) -> Callable[..., None]:
    """accumulate(sums, shared, kept, thread, a, of_a, limits, row, slices): add a tile of A times what is kept.

    ``limits`` are rows and depth. As ``engine.accumulate``, with slots for A alone.
    """
    tile, unit = product.tile, product.unit
    room = tensor_core if isinstance(unit, TensorCore) else cuda_core
    prepare, multiply = room.prepare(unit), room.multiply(unit)
    open_a, next_a = product.fetch_a.open, product.fetch_a.next
    longs_of_a, ints_of_a = product.fetch_a.longs, product.fetch_a.ints
    addresses_a, addresses_b = unit.addresses
    stages, slot_bytes, bytes_of_b = tile.stages, unit.a.nbytes, unit.b.nbytes
    wait = ptx.cp_async_wait_group(stages - 2)

    @device_function
    def accumulate_(
        sums: Any,
        shared: Any,
        kept: Any,
        thread: Any,
        a: Any,
        of_a: Any,
        limits: Any,
        row: Any,
        slices: Any,
    ) -> None:
        places_a = cuda.local.array(addresses_a, _uint32)
        places_b = cuda.local.array(addresses_b, _uint32)
        longs, ints = cuda.local.array(longs_of_a, _int64), cuda.local.array(ints_of_a, _int32)
        prepare(places_a, places_b, thread)
        left = _int32(slices)
        open_a(longs, ints, a, of_a, limits, row, _int32(0), thread)
        for i in range(stages - 1):
            if i < left:
                next_a(longs, ints, a, of_a, limits, shared + _uint32(i * slot_bytes), thread)
            ptx.cp_async_commit()
        read, written = shared, shared + _uint32((stages - 1) * slot_bytes)
        while left > _int32(0):
            wait()
            cuda.syncthreads()
            if left > _int32(stages - 1):
                next_a(longs, ints, a, of_a, limits, written, thread)
            ptx.cp_async_commit()
            multiply(sums, read, kept, places_a, places_b)
            kept += _uint32(bytes_of_b)
            written = read
            read += _uint32(slot_bytes)
            if read == shared + _uint32(stages * slot_bytes):
                read = shared
            left = _int32(left - _int32(1))
        ptx.cp_async_wait_all()

    return accumulate_
