# mypy: ignore-errors
"""Run time: operations that the lanes of a warp perform together.

Each lane writes its operands into its Thread and arrives; the last lane of the mask executes the
operation for all of them and hands out the results. Any mask works, and the executor can see
whether all lanes agree about the operation. Instructions of tensor cores work the same way, with
operands in an array on each lane's stack (`Thread.inputs`, `Thread.outputs`).
"""

from __future__ import annotations

from dnncanon.gpu.emulator.machine.fibers import (
    barrier,
    count_idle,
    fail,
    progress,
    resume_next,
    switch,
)
from dnncanon.gpu.emulator.machine.state import Failure, State, Thread
from dnncanon.gpu.emulator.native import (
    i1,
    i32,
    indirect,
    native,
    ptr,
    trailing_zeros,
    u8,
    u32,
    u64,
    void,
)

RUNNING, IN_COLLECTIVE = int(State.RUNNING), int(State.IN_COLLECTIVE)
AT_ACTIVEMASK, AT_BARRIER = int(State.AT_ACTIVEMASK), int(State.AT_BARRIER)
DEADLOCK = int(Failure.DEADLOCK)
LANE_NOT_IN_MASK = int(Failure.LANE_NOT_IN_MASK)
LANES_DISAGREE = int(Failure.LANES_DISAGREE)
MASK_NAMES_EXITED = int(Failure.MASK_NAMES_EXITED)
SHUFFLE_OUTSIDE_MASK = int(Failure.SHUFFLE_OUTSIDE_MASK)
FULL_MASK = 0xFFFFFFFF


@native("emu.lead")
def lead(thread: ptr(Thread), site: u32, operation: ptr(u8), members: u32) -> void:
    """All lanes have arrived: release them and execute the operation."""
    warp = thread.warp
    warp.arrived = warp.arrived & ~members
    warp.epoch += 1
    worker = thread.worker
    worker.warp_operations += 1
    progress(worker)
    rest = members
    while rest != 0:
        lane = warp.first[trailing_zeros(rest)]
        rest = rest & (rest - 1)
        if lane.operation != operation or lane.mask != thread.mask:
            fail(thread, LANES_DISAGREE, site, lane.site)
        lane.released = 1
        lane.state = RUNNING
        if operation == 0:
            lane.epoch = warp.epoch
    if operation != 0:
        # It examines accesses of all lanes on the stack of this one: none can be sent to wait meanwhile.
        seed = worker.seed
        worker.seed = 0
        indirect(void, operation, thread, warp.first, members)
        worker.seed = seed
    thread.released = 0
    thread.state = RUNNING


@native("emu.warp_sync", attributes="noinline")
def warp_sync(thread: ptr(Thread), site: u32, operation: ptr(u8), mask: u32) -> void:
    """Arrive at `operation` (null: __syncwarp) and wait until it has been executed.

    Bits of the mask beyond the block's last thread are ignored, as the lanes do not exist.
    """
    warp = thread.warp
    bit = u32(1) << thread.lane
    members = mask & warp.exist
    if members & bit == 0:
        fail(thread, LANE_NOT_IN_MASK, site, mask)
    thread.operation = operation
    thread.mask = members
    thread.site = site
    warp.arrived = warp.arrived | bit
    strict = thread.worker.strict != 0
    if strict and members & warp.alive != members:
        fail(thread, MASK_NAMES_EXITED, site, members & ~warp.alive)
    needed = members & warp.alive
    if warp.arrived & needed == needed:
        lead(thread, site, operation, needed)
        return
    thread.state = IN_COLLECTIVE
    following = thread.warp_next
    if following != thread:
        switch(ptr(u8)(thread), following.stack_pointer)
    while thread.released == 0:
        if members & warp.alive != needed:
            if strict:
                fail(thread, MASK_NAMES_EXITED, site, members & ~warp.alive)
            needed = members & warp.alive
            if warp.arrived & needed == needed:
                lead(thread, site, operation, needed)
                return
        if count_idle(thread):
            fail(thread, DEADLOCK, site, 0)
        resume_next(thread)
    thread.released = 0
    thread.state = RUNNING


@native("emu.shuffle_all", attributes="noinline")
def shuffle_all(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
    """shfl.sync of PTX: arguments are value, mode (idx up down bfly), b, and c = clamp | mask."""
    rest = members
    while rest != 0:
        lane = trailing_zeros(rest)
        rest = rest & (rest - 1)
        me = first[lane]
        mode = me.arguments[1]
        offset = me.arguments[2] & 31
        clamp = me.arguments[3] & 31
        segment = (me.arguments[3] >> 8) & 31
        low = lane & segment
        high = low | (clamp & ~segment)
        source = i32(lane)
        inside = i1(True)
        if mode == 0:
            source = i32(low | (offset & ~segment))
            inside = source <= i32(high)
        elif mode == 1:
            source = i32(lane) - i32(offset)
            inside = source >= i32(high)
        elif mode == 2:
            source = i32(lane) + i32(offset)
            inside = source <= i32(high)
        else:
            source = i32(lane ^ offset)
            inside = source <= i32(high)
        if not inside:
            source = i32(lane)
        if (members >> u32(source)) & 1 == 0 and thread.worker.strict != 0:
            fail(me, SHUFFLE_OUTSIDE_MASK, me.site, u32(source))
        me.results[0] = first[source].arguments[0]
        me.results[1] = u32(inside)


@native("emu.vote_all", attributes="noinline")
def vote_all(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
    """vote.sync: arguments are predicate and mode (all, any, uni); results ballot and verdict."""
    ballot = u32(0)
    rest = members
    while rest != 0:
        lane = trailing_zeros(rest)
        rest = rest & (rest - 1)
        ballot = ballot | (first[lane].arguments[0] << lane)
    rest = members
    while rest != 0:
        me = first[trailing_zeros(rest)]
        rest = rest & (rest - 1)
        mode = me.arguments[1]
        verdict = ballot == members
        if mode == 1:
            verdict = ballot != 0
        elif mode == 2:
            verdict = ballot == members or ballot == 0
        me.results[0] = ballot
        me.results[1] = u32(verdict)


@native("emu.equal_lanes")
def equal_lanes(me: ptr(Thread), first: ptr(Thread), members: u32) -> u32:
    equal = u32(0)
    rest = members
    while rest != 0:
        lane = trailing_zeros(rest)
        rest = rest & (rest - 1)
        other = first[lane]
        if other.arguments[0] == me.arguments[0] and other.arguments[1] == me.arguments[1]:
            equal = equal | (u32(1) << lane)
    return equal


@native("emu.match_any_all", attributes="noinline")
def match_any_all(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
    rest = members
    while rest != 0:
        me = first[trailing_zeros(rest)]
        rest = rest & (rest - 1)
        me.results[0] = equal_lanes(me, first, members)


@native("emu.match_all_all", attributes="noinline")
def match_all_all(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
    everyone = equal_lanes(thread, first, members) == members
    rest = members
    while rest != 0:
        me = first[trailing_zeros(rest)]
        rest = rest & (rest - 1)
        me.results[0] = members if everyone else u32(0)
        me.results[1] = u32(everyone)


@native("emu.can_run")
def can_run(thread: ptr(Thread)) -> i1:
    """Runs, or waits at a barrier that has opened since."""
    if thread.state == AT_BARRIER:
        opened = thread.block.generation[thread.awaited_barrier]
        return opened != thread.awaited_generation
    return thread.state == RUNNING


@native("emu.activemask", attributes="noinline")
def activemask(thread: ptr(Thread), site: u32) -> u32:
    """The lanes that are here together, on a machine that reconverges as much as it can: a lane
    waits until every other lane of its warp is here too, blocked elsewhere, or gone."""
    thread.state = AT_ACTIVEMASK
    thread.site = site
    thread.released = 0
    while thread.released == 0:
        group = u32(0)
        others_run = i1(False)
        each = thread
        while True:
            if each.state == AT_ACTIVEMASK and each.site == site:
                group = group | (u32(1) << each.lane)
            elif can_run(each):
                others_run = True
            each = each.warp_next
            if each == thread:
                break
        if not others_run:
            rest = group
            while rest != 0:
                lane = thread.warp.first[trailing_zeros(rest)]
                rest = rest & (rest - 1)
                lane.released = 1
                lane.state = RUNNING
                lane.mask = group
            progress(thread.worker)
        else:
            resume_next(thread)
    thread.released = 0
    return thread.mask


ROOTS = [
    warp_sync,
    shuffle_all,
    vote_all,
    match_any_all,
    match_all_all,
    activemask,
]

# ---- What kernel code calls: written into each kernel's module, where LLVM inlines it.


@native("emu.barrier0", inline=True)
def barrier0(thread: ptr(Thread), site: u32) -> void:
    barrier(thread, site, u32(0))


@native("emu.barrier0.popc", inline=True)
def barrier0_popc(thread: ptr(Thread), site: u32, predicate: i32) -> i32:
    return i32(barrier(thread, site, u32(predicate != 0)))


@native("emu.barrier0.or", inline=True)
def barrier0_or(thread: ptr(Thread), site: u32, predicate: i32) -> i32:
    return i32(barrier(thread, site, u32(predicate != 0)) != 0)


@native("emu.barrier0.and", inline=True)
def barrier0_and(thread: ptr(Thread), site: u32, predicate: i32) -> i32:
    return i32(barrier(thread, site, u32(predicate == 0)) == 0)


@native("emu.bar.warp.sync", inline=True)
def bar_warp_sync(thread: ptr(Thread), site: u32, mask: u32) -> void:
    warp_sync(thread, site, ptr(u8)(0), mask)


@native("emu.shfl.run", inline=True)
def shfl_run(
    thread: ptr(Thread), site: u32, mask: u32, mode: u32, value: u32, b: u32, c: u32
) -> void:
    thread.arguments[0] = value
    thread.arguments[1] = mode
    thread.arguments[2] = b
    thread.arguments[3] = c
    warp_sync(thread, site, shuffle_all, mask)


@native("emu.vote.run", inline=True)
def vote_run(thread: ptr(Thread), site: u32, mask: u32, mode: u32, predicate: i1) -> void:
    thread.arguments[0] = u32(predicate)
    thread.arguments[1] = mode
    warp_sync(thread, site, vote_all, mask)


@native("emu.match.run", inline=True)
def match_run(thread: ptr(Thread), site: u32, operation: ptr(u8), mask: u32, value: u64) -> void:
    thread.arguments[0] = u32(value)
    thread.arguments[1] = u32(value >> 32)
    warp_sync(thread, site, operation, mask)


@native("emu.match.any.sync.i64", inline=True)
def match_any_i64(thread: ptr(Thread), site: u32, mask: u32, value: u64) -> u32:
    match_run(thread, site, match_any_all, mask, value)
    return thread.results[0]


@native("emu.match.any.sync.i32", inline=True)
def match_any_i32(thread: ptr(Thread), site: u32, mask: u32, value: u32) -> u32:
    match_run(thread, site, match_any_all, mask, u64(value))
    return thread.results[0]


@native("emu.match.all.run.i64", inline=True)
def match_all_i64(thread: ptr(Thread), site: u32, mask: u32, value: u64) -> void:
    match_run(thread, site, match_all_all, mask, value)


@native("emu.match.all.run.i32", inline=True)
def match_all_i32(thread: ptr(Thread), site: u32, mask: u32, value: u32) -> void:
    match_run(thread, site, match_all_all, mask, u64(value))
