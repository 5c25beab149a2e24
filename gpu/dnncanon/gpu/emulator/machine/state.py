"""The memory that the compiled run time and Python share: one structure per thread, warp, block
and operating-system thread ("worker"), and the codes that they hold."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from dnncanon.gpu.emulator.native import Array, Struct, i64, ptr, u8, u32, u64

__all__ = [
    "BARRIERS",
    "WARP_SIZE",
    "Block",
    "Buffer",
    "Failure",
    "Finding",
    "LocalArray",
    "Requests",
    "Shadow",
    "State",
    "Thread",
    "View",
    "Warp",
    "Worker",
]

WARP_SIZE = 32
BARRIERS = 16  # named barriers of a block; number 0 is __syncthreads


class State(IntEnum):
    """What a thread is doing."""

    RUNNING = 0
    AT_BARRIER = 1
    IN_COLLECTIVE = 2
    EXITED = 3
    SPINNING = 4
    AT_ACTIVEMASK = 5
    AT_MBARRIER = 6
    AT_GRID_SYNC = 7


class Failure(IntEnum):
    """Why a launch was abandoned."""

    NONE = 0
    DEADLOCK = 1
    EXIT_AT_BARRIER = 2
    BARRIER_AFTER_EXIT = 3
    BARRIER_DIVERGED = 4
    LANE_NOT_IN_MASK = 5
    LANES_DISAGREE = 6
    MASK_NAMES_EXITED = 7
    SHUFFLE_OUTSIDE_MASK = 8
    LIVELOCK = 9
    MEMORY_FAULT = 10
    DIVISION_FAULT = 11
    STACK_OVERFLOW = 12
    BAD_OPERAND = 13
    CHECK_LIMIT = 14
    MISSING_WGMMA_FENCE = 15
    BAD_MBARRIER = 16


Thread = Struct("Thread")
Warp = Struct("Warp")
Buffer = Struct("Buffer")
Finding = Struct("Finding")
LocalArray = Struct("LocalArray")
Shadow = Struct("Shadow")
Requests = Struct("Requests")
Block = Struct("Block")
Worker = Struct("Worker")

Thread.define(
    round_to=256,
    stack_pointer=ptr(u8),
    block=ptr(Block),
    warp=ptr(Warp),
    next=ptr(Thread),
    previous=ptr(Thread),
    warp_next=ptr(Thread),
    warp_previous=ptr(Thread),
    worker=ptr(Worker),
    tid_x=u32,
    tid_y=u32,
    tid_z=u32,
    lane=u32,
    linear=u32,
    state=u32,
    site=u32,
    mask=u32,
    released=u32,
    epoch=u32,
    yields=u32,
    awaited_barrier=u32,
    awaited_generation=u32,
    copy_group=u32,  # cp.async groups committed so far
    copy_first=u32,  # first entry of `copies` that has not landed
    copy_count=u32,
    copy_capacity=u32,
    random=u32,
    copies=ptr(u8),
    operation=ptr(u8),
    inputs=ptr(u64),  # operands of a collective instruction, one per 8 bytes
    outputs=ptr(u64),
    arguments=Array(u32, 4),  # operands of shuffles, votes and matches
    results=Array(u32, 2),
    bulk_group=u32,  # committed groups of bulk stores
    wgmma_fenced=u32,
    wgmma_group=u32,  # committed groups of wgmma
    wgmma_landed=u32,  # groups below this number have been waited for
    wgmma_next=u32,  # next entry of the ring `wgmma_values`
    wgmma_values=ptr(u64),
    proxy_fences=u32,
    copy_site=u32,
    released_at=u32,
    acquired_at=u32,
    locals=ptr(LocalArray),
)

Warp.define(
    round_to=64,
    first=ptr(Thread),
    arrived=u32,
    alive=u32,
    exist=u32,
    epoch=u32,
)

Block.define(
    round_to=64,
    worker=ptr(Worker),
    arguments=ptr(u8),
    shared=ptr(u8),
    threads=ptr(Thread),
    warps=ptr(Warp),
    linear=i64,
    ctaid_x=u32,
    ctaid_y=u32,
    ctaid_z=u32,
    ntid_x=u32,
    ntid_y=u32,
    ntid_z=u32,
    nctaid_x=u32,
    nctaid_y=u32,
    nctaid_z=u32,
    thread_count=u32,
    warp_count=u32,
    alive=u32,
    dynamic_bytes=u32,
    static_bytes=u32,
    shared_bytes=u64,
    arrived=Array(u32, BARRIERS),
    generation=Array(u32, BARRIERS),
    barrier_site=Array(u32, BARRIERS),
    predicate_sum=u32,
    predicate_result=u32,
    epoch=u32,  # completed barriers 0: the interval in which an access happens
    bulk_count=u32,
    bulk_capacity=u32,
    group_arrived=Array(u32, 8),
    group_generation=Array(u32, 8),
    bulk=ptr(u8),  # pending asynchronous bulk copies
    slot=u64,  # number among the resident blocks
    acquired_at=u32,
)

Worker.define(
    round_to=64,
    main=ptr(u8),  # stack pointer of the code that runs the blocks
    kernel=ptr(u8),  # void kernel(Thread *)
    stacks=ptr(u8),
    stack_size=u64,
    stacks_size=u64,
    blocks=ptr(Block),
    counter=ptr(i64),  # next block to take, shared by all workers
    total=i64,
    current=ptr(Thread),  # the thread that runs, when threads run one after another
    order=ptr(u32),
    signal_stack=ptr(u8),
    resident=u32,  # blocks that run at the same time in this worker
    alive=u32,  # threads of the resident blocks that have not exited
    strict=u32,
    fibers=u32,
    seed=u32,
    error=u32,
    error_site=u32,
    error_detail=u32,
    error_thread=ptr(Thread),
    error_address=u64,
    idle=u64,
    spins=u64,
    grid_arrived=u32,
    grid_generation=u32,
    barriers=i64,
    warp_operations=i64,
    checks=u32,
    profile_on=u32,
    clock=u32,
    site_count=u32,
    buffers=ptr(Buffer),
    buffer_count=u32,
    finding_count=u32,
    findings=ptr(Finding),
    finding_capacity=u32,
    counts=ptr(i64),  # findings by site and kind
    block_released=ptr(u32),  # by linear block number: the clock of its last release
    block_counts=ptr(i64),  # executions of each basic block of the kernel
    scratch=ptr(u8),  # where bad accesses go
    requests=ptr(Requests),  # by warp of all resident blocks and slot
    executions=ptr(u32),  # by thread of all resident blocks and slot
    traffic=ptr(i64),  # by slot: requests, bytes, sectors or wavefronts, least of those
)

# ---- Structures of check and profile mode
Buffer.define(
    round_to=64,
    base=u64,  # an address, or, of shared arrays, an offset
    size=u64,
    shadow=ptr(u8),
    valid=ptr(u8),  # one byte per byte: does it belong to the array? null: all do
    sectors=ptr(u8),  # one byte per sector of 32: read from DRAM, written? null: nobody counts
    shadow_bytes=u64,  # of one resident block's copy, for shared arrays
    granule=u32,  # log2 of the bytes that one shadow stands for
    flags=u32,
    number=u32,
)
Shadow.define(
    round_to=16,
    writer=u32,  # ((block + 1) << 10) | thread; 0: nobody
    epoch=u32,
    warp_epoch=u32,
    time=u32,
    flags=u32,
    reader=u32,
    reader_epoch=u32,
    reader_warp_epoch=u32,
    reader_time=u32,
    other_reader=u32,
    other_warp_epoch=u32,
    other_time=u32,
    fences=u32,  # proxy fences that the writer had executed when it wrote
)
Finding.define(
    round_to=64,
    kind=u32,
    site=u32,
    thread=u32,
    other=u32,
    block=i64,
    address=u64,
    shared=u64,
)
LocalArray.define(round_to=64, next=ptr(LocalArray), size=u32)
Requests.define(
    round_to=16,
    addresses=ptr(u64),  # [execution][lane]; 0: the lane did not take part
    capacity=u32,
    size=u32,
)


_DTYPES = {("i", 32): np.int32, ("i", 64): np.int64, ("u", 32): np.uint32, ("u", 64): np.uint64}


class View:
    """Fields of one structure, or of an array of them, seen as NumPy arrays."""

    def __init__(self, struct: Struct, memory: npt.NDArray[np.uint8]) -> None:
        self.struct = struct
        self.memory = memory.reshape(-1, struct.size)

    def __getitem__(self, name: str) -> npt.NDArray[np.generic]:
        """The field over all structures; arrays within structures gain a last axis."""
        kind, offset = self.struct.fields[name]
        element, count = (kind.element, kind.count) if isinstance(kind, Array) else (kind, 0)
        dtype = np.dtype(
            np.float64
            if element.kind == "f"
            else np.uint64
            if element.kind == "p"
            else _DTYPES[element.kind, element.bits]
        )
        size = element.size * max(1, count)
        raw = self.memory[:, offset : offset + size].view(dtype)
        return raw if count else raw[:, 0]

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        self[name][...] = value
