# mypy: ignore-errors
"""Run time: CUDA threads as fibers, block barriers, and the loop that runs blocks.

One fiber per CUDA thread; a switch saves six registers and swaps the stack pointer. Threads that
can run form a ring. A barrier counts arrivals: whoever arrives last goes on at once, the others
pass control round the ring until the generation changes. Kernels without barriers and collectives
need no fibers: their threads run one after another on one stack.

The functions here are native (see `native.py`), hence invisible to mypy.
"""

from __future__ import annotations

from dnncanon.gpu.emulator.machine.findings import acquire_now, check_exit, release_now
from dnncanon.gpu.emulator.machine.profiling import flush_profile
from dnncanon.gpu.emulator.machine.state import (
    Block,
    Failure,
    LocalArray,
    State,
    Thread,
    Worker,
)
from dnncanon.gpu.emulator.native import (
    NativeFunction,
    atomic_add,
    atomic_store,
    external,
    i1,
    i32,
    i64,
    indirect,
    native,
    never,
    ptr,
    stack_array,
    u8,
    u32,
    u64,
    void,
)

RUNNING, AT_BARRIER, EXITED, SPINNING = (
    int(s) for s in (State.RUNNING, State.AT_BARRIER, State.EXITED, State.SPINNING)
)
AT_GRID_SYNC = int(State.AT_GRID_SYNC)
DEADLOCK, LIVELOCK = int(Failure.DEADLOCK), int(Failure.LIVELOCK)
EXIT_AT_BARRIER = int(Failure.EXIT_AT_BARRIER)
BARRIER_AFTER_EXIT = int(Failure.BARRIER_AFTER_EXIT)
BARRIER_DIVERGED = int(Failure.BARRIER_DIVERGED)
MEMORY_FAULT, DIVISION_FAULT = int(Failure.MEMORY_FAULT), int(Failure.DIVISION_FAULT)
STACK_OVERFLOW = int(Failure.STACK_OVERFLOW)

SPIN_LIMIT = 20_000_000  # yields without progress before a wait is called endless
YIELD_EVERY = 8
SIGNAL_STACK_BYTES = 65536
FRAME_BYTES = 72  # a fresh fiber's stack holds six registers, a return address, and padding

# ---- Switching. Written as assembly inside IR: there is no other way to swap stacks.
switch = NativeFunction(
    "emu.switch",
    [("save", ptr(u8)), ("to", ptr(u8))],
    void,
    text="define void @emu.switch(ptr %save, ptr %to) naked noinline nounwind {\n"
    '  call void asm sideeffect "pushq %rbp\\0Apushq %rbx\\0Apushq %r12\\0Apushq %r13\\0A'
    "pushq %r14\\0Apushq %r15\\0Amovq %rsp, (%rdi)\\0Amovq %rsi, %rsp\\0Apopq %r15\\0Apopq %r14\\0A"
    'popq %r13\\0Apopq %r12\\0Apopq %rbx\\0Apopq %rbp\\0Aret", ""()\n  unreachable\n}',
)
# A fresh fiber "returns" here with its function in r13 and its thread in r12.
trampoline = NativeFunction(
    "emu.trampoline",
    [],
    void,
    text="define void @emu.trampoline() naked noinline nounwind {\n"
    '  call void asm sideeffect "movq %r12, %rdi\\0Acallq *%r13\\0Aud2", ""()\n  unreachable\n}',
)
sigaltstack = external("sigaltstack", i32, ptr(u8), ptr(u8))

# Workers that run now, for the signal handler: 256 slots of (stacks, bytes, worker). A variable of the
# run-time module, so that its code holds no address of this process.
ACTIVE_SLOTS = 256
active_table = NativeFunction(
    "emu.active_table",
    [],
    ptr(u64),
    text=f"@emu.active = global [{3 * ACTIVE_SLOTS} x i64] zeroinitializer\n"
    "define ptr @emu.active_table() alwaysinline nounwind memory(none) {\n  ret ptr @emu.active\n}",
)


@native("emu.leave", attributes="noinline")
def leave(thread: ptr(Thread)) -> void:
    """Give up this fiber and return to the code that runs the blocks."""
    switch(ptr(u8)(thread), thread.worker.main)


@native("emu.fail", attributes="noinline noreturn cold")
def fail(thread: ptr(Thread), code: u32, site: u32, detail: u32) -> void:
    """Abandon the launch: record why and where, and return to the code that runs the blocks."""
    worker = thread.worker
    worker.error = code
    worker.error_site = site
    worker.error_detail = detail
    worker.error_thread = thread
    leave(thread)
    never()


@native("emu.resume", inline=True)
def resume_next(thread: ptr(Thread)) -> void:
    """Let the next thread of the ring run."""
    following = thread.next
    if following != thread:
        switch(ptr(u8)(thread), following.stack_pointer)


@native("emu.idle", attributes="cold")
def count_idle(thread: ptr(Thread)) -> i1:
    """Count a resumption that achieved nothing; true when nobody can make progress any more."""
    worker = thread.worker
    worker.idle += 1
    return worker.idle > u64(worker.resident * thread.block.thread_count) * 4 + 256


@native("emu.progress")
def progress(worker: ptr(Worker)) -> void:
    worker.idle = 0
    worker.spins = 0


@native("emu.release")
def release(block: ptr(Block), number: u32) -> void:
    """Open a barrier: its generation changes."""
    block.arrived[number] = 0
    block.generation[number] += 1
    if number == 0:
        block.predicate_result = block.predicate_sum
        block.predicate_sum = 0
        block.epoch += 1
    block.worker.barriers += 1
    progress(block.worker)


@native("emu.barrier", attributes="noinline")
def barrier(thread: ptr(Thread), site: u32, predicate: u32) -> u32:
    """Barrier 0 of the block; returns for how many threads the predicate was 1."""
    block = thread.block
    generation = block.generation[0]
    block.predicate_sum += predicate
    waiting = block.arrived[0]
    block.arrived[0] = waiting + 1
    strict = thread.worker.strict != 0
    if waiting == 0:
        block.barrier_site[0] = site
    elif strict and block.barrier_site[0] != site:
        fail(thread, BARRIER_DIVERGED, site, block.barrier_site[0])
    if strict and block.alive != block.thread_count:
        fail(thread, BARRIER_AFTER_EXIT, site, block.alive)
    if waiting + 1 == block.alive:
        release(block, 0)
        return block.predicate_result
    wait_for_generation(thread, 0, generation, site)
    return block.predicate_result


@native("emu.named_barrier", attributes="noinline")
def named_barrier(thread: ptr(Thread), site: u32, number: u32, count: u32, waits: u32) -> void:
    """bar.sync / bar.arrive number, count: opens when `count` threads have arrived."""
    block = thread.block
    generation = block.generation[number]
    release_now(thread)
    block.arrived[number] += 1
    if block.arrived[number] >= count:
        release(block, number)
    elif waits != 0:
        wait_for_generation(thread, number, generation, site)
    if waits != 0:
        acquire_now(thread)


@native("emu.wait_generation", inline=True)
def wait_for_generation(thread: ptr(Thread), number: u32, generation: u32, site: u32) -> void:
    thread.state = AT_BARRIER
    thread.site = site
    thread.awaited_barrier = number
    thread.awaited_generation = generation
    block = thread.block
    while True:
        resume_next(thread)
        if block.generation[number] != generation:
            break
        if count_idle(thread):
            fail(thread, DEADLOCK, site, 0)
    thread.state = RUNNING


@native("emu.grid_sync", attributes="noinline")
def grid_sync(thread: ptr(Thread), site: u32) -> void:
    """Wait for all threads of the grid, which are all resident in this worker."""
    worker = thread.worker
    generation = worker.grid_generation
    worker.grid_arrived += 1
    if worker.grid_arrived == worker.alive:
        worker.grid_arrived = 0
        worker.grid_generation += 1
        for b in range(worker.resident):
            worker.blocks[b].epoch += 1
            release_now(worker.blocks[b].threads)
        for b in range(worker.resident):
            acquire_now(worker.blocks[b].threads)
        progress(worker)
        return
    thread.state = AT_GRID_SYNC
    thread.site = site
    while worker.grid_generation == generation:
        resume_next(thread)
        if worker.grid_generation == generation and count_idle(thread):
            fail(thread, DEADLOCK, site, 0)
    thread.state = RUNNING


@native("emu.yield", attributes="noinline")
def yield_now(thread: ptr(Thread), site: u32) -> void:
    """Let others run: called where a kernel may spin (compare-and-swap, exchange, fences)."""
    thread.yields += 1
    if thread.yields % YIELD_EVERY != 0:
        return
    worker = thread.worker
    worker.idle = 0
    worker.spins += 1
    if worker.spins > SPIN_LIMIT:
        fail(thread, LIVELOCK, site, 0)
    thread.site = site
    thread.state = SPINNING
    resume_next(thread)
    thread.state = RUNNING


@native("emu.exit", attributes="noinline")
def exit_thread(thread: ptr(Thread)) -> void:
    """The kernel returned: leave both rings, open a barrier that waits for nobody else."""
    worker = thread.worker
    block = thread.block
    if worker.checks != 0:
        check_exit(thread)
    thread.state = EXITED
    block.alive -= 1
    worker.alive -= 1
    progress(worker)
    warp = thread.warp
    warp.alive = warp.alive & ~(u32(1) << thread.lane)
    thread.next.previous = thread.previous
    thread.previous.next = thread.next
    thread.warp_next.warp_previous = thread.warp_previous
    thread.warp_previous.warp_next = thread.warp_next
    if worker.alive == 0:
        leave(thread)
    waiting = block.arrived[0]
    if waiting != 0:
        if worker.strict != 0:
            fail(thread, EXIT_AT_BARRIER, block.barrier_site[0], 0)
        if waiting == block.alive:
            release(block, 0)
    switch(ptr(u8)(thread), thread.next.stack_pointer)
    never()


@native("emu.fiber", attributes="noinline")
def fiber(thread: ptr(Thread)) -> void:
    """The first function on a fiber's stack."""
    indirect(void, thread.worker.kernel, thread)
    exit_thread(thread)
    never()


@native("emu.sequence", attributes="noinline")
def sequence(thread: ptr(Thread)) -> void:
    """All threads of the block, one after another, on the stack of the first."""
    worker = thread.worker
    kernel = worker.kernel
    for i in range(thread.block.thread_count):
        each = thread.block.threads[i]
        worker.current = each
        indirect(void, kernel, each)
    leave(thread)
    never()


@native("emu.new_stack")
def new_stack(thread: ptr(Thread), index: u32, entry: ptr(u8)) -> void:
    """Lay out a stack so that a switch to it calls entry(thread). Tops are staggered over the
    cache sets, which stacks of equal size would otherwise share."""
    worker = thread.worker
    top = worker.stacks + u64(index + 1) * worker.stack_size - u64(index % 32) * 128
    frame = ptr(u64)(top - FRAME_BYTES)
    frame[0] = 0
    frame[1] = 0
    frame[2] = u64(entry)
    frame[3] = u64(thread)
    frame[4] = 0
    frame[5] = 0
    frame[6] = u64(trampoline)
    thread.stack_pointer = ptr(u8)(frame)


@native("emu.random")
def next_random(state: u32) -> u32:
    """xorshift32."""
    value = state
    value = value ^ (value << 13)
    value = value ^ (value >> 17)
    return value ^ (value << 5)


@native("emu.shuffle_order", attributes="noinline")
def shuffle_order(worker: ptr(Worker), count: u32, salt: u32) -> void:
    """worker.order = the order in which threads stand in the ring: by index, or shuffled by the
    seed (first among warps' lanes alike: a GPU promises no order at all)."""
    order = ptr(u32)(worker.order)
    for i in range(count):
        order[i] = i
    if worker.seed != 0:
        state = (worker.seed * 2654435761 + salt * 40503) | 1
        for k in range(count - 1):
            state = next_random(state)
            j = k + state % (count - k)
            swap = order[k]
            order[k] = order[j]
            order[j] = swap


@native("emu.link")
def link(before: ptr(Thread), after: ptr(Thread)) -> void:
    before.next = after
    after.previous = before


@native("emu.reset_block")
def reset_block(block: ptr(Block)) -> void:
    for number in range(16):
        block.arrived[number] = 0
    for group in range(8):
        block.group_arrived[group] = 0
    block.alive = block.thread_count
    block.predicate_sum = 0
    block.bulk_count = 0
    block.acquired_at = 0
    for w in range(block.warp_count):
        warp = block.warps[w]
        warp.alive = warp.exist
        warp.arrived = 0
    for i in range(block.thread_count):
        thread = block.threads[i]
        end = i | 31
        if end >= block.thread_count:
            end = block.thread_count - 1
        thread.warp_next = block.threads[(i & ~u32(31)) if i == end else i + 1]
        thread.warp_previous = block.threads[end if (i & 31) == 0 else i - 1]
        thread.state = RUNNING
        thread.released = 0
        thread.copy_group = 0
        thread.copy_first = 0
        thread.copy_count = 0
        thread.bulk_group = 0
        thread.wgmma_fenced = 0
        thread.wgmma_group = 0
        thread.wgmma_landed = 0
        thread.proxy_fences = 0
        thread.released_at = 0
        thread.acquired_at = 0
        thread.locals = ptr(LocalArray)(0)
        thread.random = (block.worker.seed * 2654435761 + i * 747796405 + u32(block.linear)) | 1


@native("emu.start_blocks", attributes="noinline")
def start_blocks(worker: ptr(Worker), first: i64, resident: u32) -> void:
    """Run blocks first … first + resident − 1 to their end, all at the same time."""
    per_block = worker.blocks.thread_count
    for b in range(resident):
        block = worker.blocks[b]
        linear = first + i64(b)
        block.linear = linear
        block.ctaid_x = u32(linear % i64(block.nctaid_x))
        rest = linear // i64(block.nctaid_x)
        block.ctaid_y = u32(rest % i64(block.nctaid_y))
        block.ctaid_z = u32(rest // i64(block.nctaid_y))
        if worker.fibers != 0:
            reset_block(block)
    threads = worker.blocks.threads
    count = per_block * resident
    worker.alive = count
    worker.grid_arrived = 0
    progress(worker)
    if worker.fibers == 0:
        worker.current = threads
        new_stack(threads, 0, sequence)
        switch(ptr(u8)(worker), threads.stack_pointer)
        return
    shuffle_order(worker, count, u32(first) + 1)
    order = ptr(u32)(worker.order)
    for i in range(count):
        thread = threads[order[i]]
        new_stack(thread, order[i], fiber)
        link(thread, threads[order[0 if i + 1 == count else i + 1]])
    switch(ptr(u8)(worker), threads[order[0]].stack_pointer)


@native("emu.register")
def register_active(worker: ptr(Worker)) -> u32:
    """Enter the worker in the table that the signal handler searches; returns its slot."""
    table = active_table()
    slot = u32(0)
    while slot < ACTIVE_SLOTS - 1:
        claimed = atomic_add(table + u64(slot) * 24 + 8, 1)
        if claimed == 0:
            break
        atomic_add(table + u64(slot) * 24 + 8, -1)
        slot += 1
    table[slot * 3 + 2] = u64(worker)
    table[slot * 3] = u64(worker.stacks)
    return slot


@native("emu.unregister")
def unregister_active(slot: u32) -> void:
    table = active_table()
    table[slot * 3] = 0
    atomic_add(table + u64(slot) * 24 + 8, -1)


@native("emu.run", attributes="noinline")
def run(worker: ptr(Worker)) -> void:
    """Take blocks from the shared counter and run them, until none is left or one fails."""
    ours = stack_array(u64, 3)
    theirs = stack_array(u64, 3)
    ours[0] = u64(worker.signal_stack)
    ours[1] = 0
    ours[2] = SIGNAL_STACK_BYTES
    sigaltstack(ptr(u8)(ours), ptr(u8)(theirs))
    slot = register_active(worker)
    step = i64(worker.resident)
    while True:
        first = atomic_add(worker.counter, step)
        if first >= worker.total:
            break
        start_blocks(worker, first, worker.resident)
        if worker.profile_on != 0:
            flush_profile(worker)
        if worker.error != 0:
            atomic_store(worker.counter, worker.total)
            break
    unregister_active(slot)
    sigaltstack(ptr(u8)(theirs), ptr(u8)(0))


# ---- Faults. A wild access of a kernel must not take the process with it.
SIGFPE = 8
UCONTEXT_REGISTERS = 40  # offset of uc_mcontext.gregs on x86-64 Linux
RDI, RSI, RDX, RSP, RIP = 8, 9, 12, 15, 16  # indices into gregs
SIGINFO_ADDRESS = 16


@native("emu.fault_landing", attributes="noinline noreturn")
def fault_landing(thread: ptr(Thread), address: u64, code: u64) -> void:
    """Where a faulting fiber continues: report and leave."""
    thread.worker.error_address = address
    fail(thread, u32(code), thread.site, 0)
    never()


@native("emu.handle_fault", attributes="noinline")
def handle_fault(signal: i32, information: ptr(u8), context: ptr(u8)) -> i32:
    """Signal handler: if a fiber of ours faulted, make it continue in `fault_landing`.

    Returns 0 when the fault belongs to somebody else.
    """
    registers = ptr(u64)(context + UCONTEXT_REGISTERS)
    stack = registers[RSP]
    table = active_table()
    for slot in range(ACTIVE_SLOTS):
        base = table[slot * 3]
        if base == 0:
            continue
        worker = ptr(Worker)(table[slot * 3 + 2])
        offset = stack - base
        if stack < base or offset >= worker.stacks_size:
            continue
        index = offset // worker.stack_size
        thread = worker.blocks.threads[index] if worker.fibers != 0 else worker.current
        address = ptr(u64)(information + SIGINFO_ADDRESS)[0]
        code = u64(MEMORY_FAULT)
        if signal == SIGFPE:
            code = DIVISION_FAULT
        elif address >= base and address < base + worker.stacks_size:
            code = STACK_OVERFLOW
        registers[RDI] = u64(thread)
        registers[RSI] = address
        registers[RDX] = code
        registers[RSP] = base + (index + 1) * worker.stack_size - 4096 - 8
        registers[RIP] = u64(fault_landing)
        return 1
    return 0


ROOTS = [run, barrier, named_barrier, grid_sync, yield_now, fail, handle_fault]
"""What the run-time module exports."""
