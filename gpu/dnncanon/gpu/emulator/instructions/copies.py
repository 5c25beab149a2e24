# mypy: ignore-errors
"""How the emulator executes asynchronous copies of one thread: cp.async and its wait groups.

A copy reads its source when it is issued and lands only when the issuing thread waits for its
group, so a missing or too weak wait shows as stale data.
"""

from __future__ import annotations

from functools import cache

from dnncanon.gpu.emulator.machine.access import ASYNC, READ, WRITE, shared_pointer, touch
from dnncanon.gpu.emulator.machine.state import Thread
from dnncanon.gpu.emulator.native import (
    Array,
    NativeFunction,
    Struct,
    external,
    memory_copy,
    memory_set,
    native,
    ptr,
    u8,
    u32,
    u64,
    void,
)

reallocate = external("realloc", ptr(u8), ptr(u8), u64)

Copy = Struct("Copy")
Copy.define(round_to=16, data=Array(u64, 2), destination=ptr(u8), size=u32, group=u32, site=u32)
COPY_BYTES = Copy.size
FIRST_CAPACITY = 32


@native("emu.land_copies")
def land_copies(thread: ptr(Thread), before: u32) -> void:
    """Land every pending copy of a group with number < before; groups land in order."""
    copies = ptr(Copy)(thread.copies)
    while thread.copy_first < thread.copy_count:
        each = copies[thread.copy_first]
        if each.group >= before:
            return
        memory_copy(each.destination, ptr(u8)(each.data), each.size)
        touch(thread, each.destination, each.size, each.site, u32(WRITE))
        thread.copy_first += 1
    thread.copy_first = 0
    thread.copy_count = 0


@native("emu.queue_copy", attributes="noinline")
def queue_copy(
    thread: ptr(Thread), site: u32, address: u32, source: u64, size: u32, valid: u32
) -> void:
    """cp.async of `size` bytes, of which the first `valid` come from memory, the rest are 0."""
    if thread.copy_count == thread.copy_capacity:
        capacity = thread.copy_capacity * 2
        if capacity == 0:
            capacity = u32(FIRST_CAPACITY)
        thread.copies = reallocate(thread.copies, u64(capacity) * COPY_BYTES)
        thread.copy_capacity = capacity
    destination = shared_pointer(thread, address)
    copies = ptr(Copy)(thread.copies)
    entry = copies[thread.copy_count]
    thread.copy_count += 1
    thread.copy_site = site
    entry.destination = touch(thread, destination, size, site, u32(WRITE + ASYNC))
    entry.size = size
    entry.group = thread.copy_group
    entry.site = site
    memory_set(ptr(u8)(entry.data), 0, size)
    if valid != 0:
        from_memory = touch(thread, ptr(u8)(source), valid, site, u32(READ))
        memory_copy(ptr(u8)(entry.data), from_memory, valid)


@cache
def cp_async(size: int) -> NativeFunction:
    @native(f"emu.cp_async.{size}", inline=True)
    def execute(thread: ptr(Thread), site: u32, address: u32, source: u64) -> void:
        queue_copy(thread, site, address, source, u32(size), u32(size))

    return execute


@cache
def cp_async_fill(size: int) -> NativeFunction:
    """cp.async with a source size: the bytes beyond it are zero."""

    @native(f"emu.cp_async_fill.{size}", inline=True)
    def execute(thread: ptr(Thread), site: u32, address: u32, source: u64, valid: u32) -> void:
        queue_copy(thread, site, address, source, u32(size), valid)

    return execute


@cache
def cp_async_if(size: int) -> NativeFunction:
    """cp.async with the operand that has the source ignored: all bytes are zero then."""

    @native(f"emu.cp_async_if.{size}", inline=True)
    def execute(thread: ptr(Thread), site: u32, address: u32, source: u64, wanted: u32) -> void:
        valid = u32(0)
        if wanted != 0:
            valid = u32(size)
        queue_copy(thread, site, address, source, u32(size), valid)

    return execute


@native("emu.cp_async_commit", inline=True)
def cp_async_commit(thread: ptr(Thread), site: u32) -> void:
    thread.copy_group += 1


@cache
def cp_async_wait_group(pending: int) -> NativeFunction:
    """Wait until at most `pending` of the latest groups are in flight."""

    @native(f"emu.cp_async_wait.{pending}", inline=True)
    def execute(thread: ptr(Thread), site: u32) -> void:
        if thread.copy_group > pending:
            land_copies(thread, thread.copy_group - pending)

    return execute


@native("emu.cp_async_wait_all", inline=True)
def cp_async_wait_all(thread: ptr(Thread), site: u32) -> void:
    land_copies(thread, thread.copy_group + 1)
