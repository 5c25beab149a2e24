"""The kernel of the tile engine for Hopper (sm_90a): one warpgroup fetches, the others multiply.

Of the fetching warpgroup, the *producer*, one thread starts copies of whole slices (TMA), which the hardware
then carries out: coordinates outside the operand bring zeros, so edges need no code. The *consumers* multiply.
A ring of slots in shared memory is between them, each with two mbarriers:

    producer:   wait until the slot is empty, start copies into it, which announce themselves at ``full``
    consumers:  wait until it is full, multiply, and when that is done arrive at ``empty``

Blocks stay: each computes one tile after the other, and while its consumers write one, the producer already
fetches for the next. The producer is a whole warpgroup because it gives registers to the consumers, whose sums
fill more than half of what they would have otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile import warpgroup
from dnncanon.gpu.kernels.tile.engine import tile_of_turn
from dnncanon.gpu.kernels.tile.epilogue import Output, drain, staging_bytes
from dnncanon.gpu.kernels.tile.shape import WARP
from dnncanon.gpu.kernels.tile.slices import Direction
from dnncanon.gpu.kernels.tile.stream_k import add_parts, run_of, runs_of, store_part
from dnncanon.gpu.kernels.tile.warpgroup import PANEL, PANEL_BYTES, WARPGROUP, Warpgroup
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import digits_of, places

_BARRIER = 8
"""Bytes of an mbarrier."""

_CONSUMERS = 1
"""The number of the barrier at which consumers meet, without the producer."""

_FEW_REGISTERS, _MANY_REGISTERS = 40, 232
"""Of a thread of the producer and of a consumer, where three warpgroups have 168 each to begin with."""

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a kernel is compiled for: the unit, and how y is written."""

    unit: Warpgroup
    output: Output

    @property
    def threads(self) -> int:
        """The consumers, whom ``tile.warps`` counts, and the producer behind them."""
        return self.unit.tile.threads + WARPGROUP

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the slots, and behind them a strip of the tile that is written."""
        return self.unit.tile.stages * self.unit.slot_bytes + staging_bytes(self.unit)


@cache
def _next_slot(stages: int) -> Callable[[Any, Any], Any]:
    """next_slot(slot, phase): the slot behind it, and in which round of the ring, even or odd, it is used."""

    @device_function
    def next_slot(slot: Any, phase: Any) -> Any:
        if slot == _uint32(stages - 1):
            return _uint32(0), _uint32(phase ^ _uint32(1))
        return _uint32(slot + _uint32(1)), phase

    return next_slot


# --- The producer ---------------------------------------------------------------------------------


@cache
def _fetch(along: Direction, panels: int) -> Callable[..., None]:
    """fetch(slot, tensor map, line, depth, member, full): start to copy a slice of an operand, by panels."""
    along_depth = along == "depth"

    @device_function
    def fetch(slot: Any, tensor: Any, line: Any, depth: Any, member: Any, full: Any) -> None:
        for panel in range(panels):
            to, lines = _uint32(slot + panel * PANEL_BYTES), _int32(line + panel * PANEL)
            inner, outer = (depth, lines) if along_depth else (lines, depth)
            ptx.tensor_load_5d(to, tensor, inner, outer, member[2], member[1], member[0], full)

    return fetch


@cache
def produce(unit: Warpgroup) -> Callable[..., Any]:
    """produce(ring, place, operands, origin, slices) -> place: fetch the slices of a tile, by one thread.

    ``ring`` is (first slot, its full barrier, its empty barrier), ``place`` the slot and round to go on with;
    ``operands`` are (map of A, map of B, batch coordinates of A, of B), ``origin`` the tile's first row and
    column.
    """
    panels_a, panels_b = unit.panels
    fetch_a, fetch_b = _fetch(unit.a, panels_a), _fetch(unit.b, panels_b)
    bytes_of_a, slot_bytes = panels_a * PANEL_BYTES, unit.slot_bytes
    deep, next_slot = unit.tile.depth, _next_slot(unit.tile.stages)

    @device_function
    def produce_(ring: Any, place: Any, operands: Any, origin: Any, slices: Any) -> Any:
        slots, first_full, first_empty = ring
        a, b, member_a, member_b = operands
        slot, phase = place
        depth = _int32(slices[0] * deep)
        while depth < slices[1] * deep:
            full = _uint32(first_full + slot * _BARRIER)
            ptx.mbarrier_wait(first_empty + slot * _BARRIER, phase ^ _uint32(1))
            ptx.mbarrier_arrive_expect_tx(full, slot_bytes)
            to = _uint32(slots + slot * slot_bytes)
            fetch_a(to, a, origin[0], depth, member_a, full)
            fetch_b(_uint32(to + bytes_of_a), b, origin[1], depth, member_b, full)
            slot, phase = next_slot(slot, phase)
            depth = _int32(depth + deep)
        return slot, phase

    return produce_


# --- The consumers --------------------------------------------------------------------------------


@cache
def consume(unit: Warpgroup) -> Callable[..., Any]:
    """consume(sums, ring, place, group, lane, slices) -> place: a tile's sums, by all threads of a warpgroup.

    A slot is given back when the slice behind it has been started, so that tensor cores never wait for warps.
    ``before`` is the barrier of the slot that is to be given back next; no barrier is at address 0.
    """
    multiply, nothing = warpgroup.multiply(unit), ptx.zeros(unit.sums)
    wait_for_one_before = ptx.wgmma_wait_group(1, unit.sums)
    wait_for_all = ptx.wgmma_wait_group(0, unit.sums)
    descriptor_a, descriptor_b = warpgroup.descriptor(unit.a), warpgroup.descriptor(unit.b)
    bytes_of_a, slot_bytes = unit.panels[0] * PANEL_BYTES, unit.slot_bytes
    next_slot = _next_slot(unit.tile.stages)

    @device_function
    def consume_(sums: Any, ring: Any, place: Any, group: Any, lane: Any, slices: Any) -> Any:
        slots, first_full, first_empty = ring
        slot, phase = place
        left, before = _int32(slices[1] - slices[0]), _uint32(0)
        total = nothing()
        while left > _int32(0):
            ptx.mbarrier_wait(first_full + slot * _BARRIER, phase)
            at = _uint32(slots + slot * slot_bytes)
            a = descriptor_a(_uint32(at + group * PANEL_BYTES))
            b = descriptor_b(_uint32(at + bytes_of_a))
            total = multiply(total, a, b)
            total = wait_for_one_before(total)
            if (lane == 0) & (before != 0):
                ptx.mbarrier_arrive(before)
            before = _uint32(first_empty + slot * _BARRIER)
            slot, phase = next_slot(slot, phase)
            left = _int32(left - _int32(1))
        total = wait_for_all(total)
        if lane == 0:
            ptx.mbarrier_arrive(before)
        ptx.store_registers(sums, total)
        return slot, phase

    return consume_


@cache
def _write_tile(pipeline: Pipeline) -> Callable[..., None]:
    threads = pipeline.unit.tile.threads

    @device_function
    def meet() -> None:
        ptx.barrier_sync(_CONSUMERS, threads)

    return drain(
        pipeline.unit, warpgroup.store_strip, warpgroup.row_of_strip, pipeline.output, meet
    )


@cache
def finished_parts(pipeline: Pipeline) -> Kernel:
    """The launch behind the product, where tiles are divided; all of its threads write."""
    unit = pipeline.unit
    return add_parts(
        unit, drain(unit, warpgroup.store_strip, warpgroup.row_of_strip, pipeline.output)
    )


# --- Both -----------------------------------------------------------------------------------------


@cache
def pipelined_product(pipeline: Pipeline) -> Kernel:
    """The kernel. Launch with ``pipeline.threads`` threads and ``pipeline.shared_bytes``.

    ``a`` and ``b`` are tensor maps of five dims: the batch, then lines and depth in the order they have in
    memory. ``sizes`` are rows, columns and depth, which is not 0; ``batch`` three extents, of which ``moves``
    says, for A and then for B, whether the operand's coordinate follows (1) or stays (0). ``origins`` and
    ``strides`` are those of y, C and bias along the batch; ``parts`` and ``shares`` are those of stream-K; the
    rest is as ``tile_product`` has it.
    """
    unit, tile = pipeline.unit, pipeline.unit.tile
    feed, add, write = produce(unit), consume(unit), _write_tile(pipeline)
    store = store_part(unit.sums, tile.threads)
    stages, barriers, slot_bytes, count = tile.stages, 2 * tile.stages, unit.slot_bytes, unit.sums
    consumers, threads = tile.threads, pipeline.threads
    give_registers = ptx.set_max_registers(_FEW_REGISTERS, increase=False)
    take_registers = ptx.set_max_registers(_MANY_REGISTERS, increase=True)
    rows_of, columns_of = tile.rows, tile.columns

    @kernel(launch_bounds=(threads, 1))
    def pipelined_product_(
        a: Any,
        b: Any,
        y: Any,
        c: Any,
        bias: Any,
        parts: Any,
        sizes: Any,
        shares: Any,
        batch: Any,
        moves: Any,
        origins: Any,
        strides: Any,
        y_at: Any,
        c_at: Any,
        bias_at: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        slots = ptx.shared_address(cuda.shared.array(0, types.uint8, 1024), 0)
        full = ptx.shared_address(cuda.shared.array(barriers, types.uint64), 0)
        empty = full + _uint32(stages * _BARRIER)
        thread = _int32(cuda.threadIdx.x)
        if thread == 0:
            for slot in range(stages):
                ptx.mbarrier_init(full + _uint32(slot * _BARRIER), 1)
                ptx.mbarrier_init(empty + _uint32(slot * _BARRIER), consumers // WARP)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        rows, columns, depth = sizes
        down, across = (rows + rows_of - 1) // rows_of, (columns + columns_of - 1) // columns_of
        limits = (_int32(rows), _int32(columns), _int32(depth))
        tiles = batch[0] * batch[1] * batch[2] * down * across
        ring, place = (slots, full, empty), (_uint32(0), _uint32(0))
        worker = _int64(cuda.blockIdx.x)
        runs, number = runs_of(worker, tiles, shares), _int64(0)
        # The same in all lanes of a warp, and the compiler is to know.
        warp = cuda.shfl_sync(0xFFFFFFFF, thread // WARP, 0)
        if warp >= consumers // WARP:
            give_registers()
            if thread == consumers:
                map_a, map_b = ptx.global_address(a, 0), ptx.global_address(b, 0)
                ptx.fence_tensor_map(map_a)
                ptx.fence_tensor_map(map_b)
                while number < runs:
                    turn, first, behind = run_of(worker, tiles, shares, number)
                    row, column = tile_of_turn(turn % (down * across), down, across)
                    at = digits_of(turn // (down * across), batch)
                    of_a = (at[0] * moves[0], at[1] * moves[1], at[2] * moves[2])
                    of_b = (at[0] * moves[3], at[1] * moves[4], at[2] * moves[5])
                    origin = (_int32(row * rows_of), _int32(column * columns_of))
                    at_and_of = (map_a, map_b, of_a, of_b)
                    place = feed(ring, place, at_and_of, origin, (first, behind))
                    number += 1
        else:
            take_registers()
            sums = cuda.local.array(count, types.float32)
            group, lane = _uint32(warp // (WARPGROUP // WARP)), _uint32(thread % WARP)
            staging = slots + _uint32(stages * slot_bytes)
            while number < runs:
                turn, first, behind = run_of(worker, tiles, shares, number)
                place = add(sums, ring, place, group, lane, (first, behind))
                if behind - first < shares[1]:
                    store(sums, parts, worker + turn - shares[2], thread)
                else:
                    row, column = tile_of_turn(turn % (down * across), down, across)
                    at = places(digits_of(turn // (down * across), batch), strides, origins)
                    origin = (_int32(row * rows_of), _int32(column * columns_of))
                    where = (at[0], y_at), (at[1], c_at), (at[2], bias_at)
                    extras = (c, bias, codes, scalars)
                    write(sums, staging, thread, origin, limits, y, where, extras)
                number += 1

    return pipelined_product_
