"""Lowering: numba-cuda's IR for a GPU, to IR that the CPU can run one thread of.

Two steps, each going through the text line by line. Step one works on what llvmlite prints:
shared arrays become offsets into the block's buffer, NVVM's intrinsics lose the prefix that LLVM
reserves, debugging intrinsics go. LLVM then inlines and cleans up. Step two works on what LLVM
prints, whose form is canonical: every function gets the thread as its first parameter, special
registers become loads from it, barriers, warp operations and inline PTX become calls of the run
time with the thread and a *site* (an index into the kernel's list of source lines).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from dnncanon.gpu.emulator.compiler import engine
from dnncanon.gpu.emulator.compiler.acquire import KernelSource
from dnncanon.gpu.emulator.errors import UnsupportedKernel
from dnncanon.gpu.emulator.instructions.table import LETTERS, Instruction, Scope, find
from dnncanon.gpu.emulator.machine.state import Block, Thread
from dnncanon.gpu.emulator.native import NativeFunction

__all__ = ["CALL", "Lowered", "Lowering", "SharedArray", "Sites", "lower", "split_arguments"]

SHARED_LIMIT = 227 * 1024


@dataclass(frozen=True)
class SharedArray:
    """A shared array's place in the block's buffer; `size` is −1 for the dynamic one."""

    name: str
    offset: int
    size: int
    element: int


@dataclass
class Lowered:
    """A kernel after both steps."""

    name: str
    symbol: str
    parameters: list[str]
    text: str
    sites: list[str]
    shared: list[SharedArray]
    static_bytes: int
    dynamic_offset: int
    uses_dynamic: bool
    instructions: dict[str, Instruction]
    called: set[str]
    fibers: bool
    cooperative: bool
    stack_bytes: int
    uninstrumented: list[str] = field(default_factory=list)


# --------------------------------------------------------------------------------------------------
# Step one
# --------------------------------------------------------------------------------------------------
_SHARED = re.compile(
    r'^@"?(?P<name>[\w.$]+)"? = (?P<external>external )?addrspace\(3\) global '
    r"(?P<type>.*?)(?: undef)?(?:, align (?P<align>\d+))?$"
)
_DROPPED = re.compile(
    r'^target |^@"llvm\.used"|^!nvvm|^!\d+ = !\{ ?(?:ptr|void \(.*\)\*) @'
    r'|^\s*call void @"?llvm\.dbg\.|^declare void @"?llvm\.dbg\.'
)
_FROM_SHARED_ARRAY = re.compile(r'addrspacecast ptr addrspace\(3\) @"?([\w.$]+)"? to ptr')
_FROM_SHARED = re.compile(r"addrspacecast ptr addrspace\(3\) (\S+) to ptr")
_TO_SHARED = re.compile(r"addrspacecast ptr (\S+) to ptr addrspace\(3\)")
_SHARED_ACCESS = re.compile(
    r"= load .*ptr addrspace\(3\)|^\s*(?:store|atomicrmw|cmpxchg) .*ptr addrspace\(3\)"
)
_LOCAL = re.compile(r'^\s*%"(?P<name>_cudapy_lmem[\w.]*)" = alloca (?P<type>.*?)(?:, align \d+)?$')
_LOCAL_ZERO = re.compile(r'^\s*store .* zeroinitializer, ptr %"_cudapy_lmem')
"""Numba happens to clear local arrays; CUDA does not promise it, so checked kernels go without."""
LOCAL_RED_ZONE = 64
_OTHER_SPACE = re.compile(r" addrspace\([01345]\)")
_DECLARED = re.compile(r'^(declare .*?@"?(?P<name>[\w.]+)"?\((?P<args>.*)\)).*$')
_CONVERGENT = ("nv.barrier0", "nv.bar.", "nv.shfl", "nv.vote", "nv.match", "cudaCGSynchronize")
_HELPERS = (
    "\ndeclare ptr @emu.shared(i32) memory(none) nounwind willreturn\n"
    "declare ptr @emu.to_shared(ptr) memory(none) nounwind willreturn\n"
    "declare ptr @emu.from_shared(ptr) memory(none) nounwind willreturn\n"
    "declare ptr @emu.local_array(ptr, i32) nounwind\n"
)
RED_ZONE = 256
"""Bytes between shared arrays when accesses are checked: a multiple of the 32 banks' 128 bytes."""


@dataclass
class _SharedLayout:
    """Places shared arrays one after another, in the order in which modules declare them."""

    red_zone: int
    arrays: list[SharedArray] = field(default_factory=list)
    end: int = 0
    gaps: int = 0
    dynamic: list[tuple[str, int]] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, match: re.Match[str]) -> None:
        kind = match["type"]
        if match["external"]:
            self.dynamic.append((key, _element_size(kind)))
            return
        alignment = max(16, int(match["align"] or 16))
        self.end = -(-self.end // alignment) * alignment
        size = engine.size_of(kind)
        place = self.end + self.gaps
        self.arrays.append(SharedArray(match["name"], place, size, _element_size(kind)))
        self.offsets[key] = place
        self.end += size
        self.gaps += self.red_zone

    def finish(self) -> int:
        """Place the dynamic array behind the static ones; returns its offset."""
        start = -(-self.end // 128) * 128 + self.gaps
        for key, _ in self.dynamic:
            self.offsets[key] = start
        if self.dynamic:
            element = self.dynamic[0][1]
            self.arrays.append(SharedArray("dynamic shared memory", start, -1, element))
        return start


def _element_size(kind: str) -> int:
    inner = re.match(r"\[\d+ x (.*)\]$", kind)
    return _element_size(inner.group(1)) if inner else engine.size_of(kind)


def _step_one(source: KernelSource, layout: _SharedLayout, watch_locals: bool) -> list[str]:
    texts = []
    for number, module in enumerate(source.modules):
        lines = []
        for line in module.split("\n"):
            if _DROPPED.match(line):
                continue
            local = _LOCAL.match(line) if watch_locals else None
            if local:
                lines += _watched_local(local)
                continue
            if watch_locals and _LOCAL_ZERO.match(line):
                continue
            shared = _SHARED.match(line)
            if shared:
                layout.add(f"{number}:{shared['name']}", shared)
                continue
            lines.append(_step_one_line(line, number, source.entry))
        texts.append("\n".join(lines))
    return texts


def _watched_local(match: re.Match[str]) -> list[str]:
    """A local array with room for red zones and for notes of what has been written. The opaque
    call also keeps LLVM from turning the array into registers."""
    size = engine.size_of(match["type"])
    name = match["name"]
    return [
        f'  %"{name}.raw" = alloca [{2 * size + 2 * LOCAL_RED_ZONE} x i8], align 64',
        f'  %"{name}" = call ptr @emu.local_array(ptr %"{name}.raw", i32 {size})',
    ]


def _step_one_line(line: str, module: int, entry: str) -> str:
    line = line.replace("llvm.nvvm.", "nv.")
    if "addrspace" in line:
        line = _FROM_SHARED_ARRAY.sub(rf"call ptr @emu.shared(i32 {{{module}:\1}})", line)
        line = _FROM_SHARED.sub(r"call ptr @emu.from_shared(ptr \1)", line)
        line = _TO_SHARED.sub(r"call ptr @emu.to_shared(ptr \1)", line)
        if _SHARED_ACCESS.search(line):
            raise UnsupportedKernel(
                f"an access through a pointer into shared space: {line.strip()}"
            )
        line = _OTHER_SPACE.sub("", line).replace("addrspacecast", "bitcast")
    if line.startswith("declare "):
        return _annotate_declaration(line)
    if line.startswith("define ") and entry not in line:
        head, debug, scope = line.replace(" noinline", "").partition(" !dbg ")
        return f"{head} alwaysinline{debug}{scope}"
    if " asm sideeffect " in line and "call" in line:
        head, debug, scope = line.partition(", !dbg")
        return f"{head.rstrip()} convergent{debug}{scope}"
    return line


def _annotate_declaration(line: str) -> str:
    match = _DECLARED.match(line)
    if match is None:
        return line
    name, takes_pointer = match["name"], "ptr" in match["args"]
    if name.startswith("nv.read.ptx.sreg") or (name.startswith("__nv_") and not takes_pointer):
        return f"{match.group(1)} memory(none) nounwind willreturn"
    if name.startswith(_CONVERGENT):
        return f"{match.group(1)} convergent nounwind"
    return line


def _link(texts: list[str], layout: _SharedLayout, entry: str, level: int) -> str:
    """Parse, link, clean up; returns LLVM's own print of the result."""
    main = None
    for text in texts:
        text = re.sub(r"\{(\d+:[\w.$]+)\}", lambda m: str(layout.offsets[m.group(1)]), text)
        module = engine.parse(engine.header() + text + _HELPERS)
        if main is None:
            main = module
        else:
            main.link_in(module)
    assert main is not None
    for function in main.functions:
        if not function.is_declaration and function.name != entry:
            function.linkage = "internal"
    engine.optimise(main, level, vectorise=False)
    return str(main)


# --------------------------------------------------------------------------------------------------
# Source lines
# --------------------------------------------------------------------------------------------------
class Sites:
    """Source lines of a module, and the list of those that the kernel refers to by number."""

    _LOCATION = re.compile(
        r"^!(\d+) = (?:distinct )?!DILocation\(line: (\d+), (?:column: \d+, )?scope: !(\d+)"
        r"(?:, inlinedAt: !(\d+))?\)",
        re.MULTILINE,
    )
    _PROGRAM = re.compile(r"^!(\d+) = distinct !DISubprogram\(.*?file: !(\d+)", re.MULTILINE)
    _BLOCK = re.compile(r"^!(\d+) = (?:distinct )?!DILexicalBlock\(.*?file: !(\d+)", re.MULTILINE)
    _FILE = re.compile(r'^!(\d+) = !DIFile\(filename: "([^"]*)"', re.MULTILINE)
    _DEBUG = re.compile(r"!dbg !(\d+)")

    def __init__(self, text: str) -> None:
        self._locations = {m[1]: m.groups()[1:] for m in self._LOCATION.finditer(text)}
        self._scopes = {m[1]: m[2] for m in self._PROGRAM.finditer(text)}
        self._scopes |= {m[1]: m[2] for m in self._BLOCK.finditer(text)}
        self._files = {m[1]: m[2] for m in self._FILE.finditer(text)}
        self.lines = ["an unknown line"]
        self._numbers = {self.lines[0]: 0}

    def line_of(self, text: str) -> str:
        """file:line of an instruction, followed by the calls it was inlined through."""
        match = self._DEBUG.search(text)
        chain = []
        key = match.group(1) if match else None
        while key in self._locations:
            assert key is not None
            line, scope, inlined_at = self._locations[key]
            file = self._files.get(self._scopes.get(scope, ""), "?")
            chain.append(f"{file}:{line}")
            key = inlined_at
        return ", called from ".join(chain) or self.lines[0]

    def unique(self, text: str) -> int:
        """A new site for an instruction, even if another has the same line."""
        self.lines.append(self.line_of(text))
        return len(self.lines) - 1

    def number(self, text: str) -> int:
        """The site of an instruction."""
        line = self.line_of(text)
        if line not in self._numbers:
            self._numbers[line] = len(self.lines)
            self.lines.append(line)
        return self._numbers[line]


# --------------------------------------------------------------------------------------------------
# Step two
# --------------------------------------------------------------------------------------------------
CALL = re.compile(
    r"^(?P<indent>\s+)(?P<result>%\S+ = )?(?:tail |musttail |notail )?call (?P<type>[^@]*?)"
    r'@(?P<name>"[^"]+"|[\w.$-]+)\((?P<rest>.*)$'
)
_ASM = re.compile(
    r"^(?P<indent>\s+)(?P<result>%\S+ = )?(?:tail |musttail |notail )?call (?P<type>.*?) asm "
    r'(?:sideeffect )?(?:alignstack )?"(?P<text>[^"]*)", "(?P<constraints>[^"]*)"\((?P<rest>.*)$'
)
_DEFINE = re.compile(r'^define (?P<head>.*?)@(?P<name>"[^"]+"|[\w.$-]+)\((?P<rest>.*)$')
_MODIFIERS = re.compile(
    r"\b(?:dso_local|internal|private|linkonce_odr|weak_odr|local_unnamed_addr|fastcc|noundef"
    r"|zeroext|signext|nonnull|noalias|range\([^)]*\)) ?"
)
_LABEL = re.compile(r'^(?:[-\w.$]+|"[^"]*"):')
_SREG = re.compile(r"^nv\.read\.ptx\.sreg\.(tid|ntid|ctaid|nctaid)\.([xyz])$")
_CONTRACTED = re.compile(r"^(\s+%\S+ = (?:fmul|fadd|fsub|fneg) )(?!.*\bcontract\b)")
_SPINNING = re.compile(
    r"^\s*(?:%\S+ = )?(?:cmpxchg |atomicrmw (?:volatile )?xchg |fence )"
    r"|call .*@\"?\w*_cas_hack\"?\(|call void @nv\.membar"
)
_FENCE = re.compile(r"^\s*fence |call void @nv\.membar")
_WARP_OPERATIONS = {
    "nv.shfl.sync.i32": ("emu.shfl.run", True),
    "nv.vote.sync": ("emu.vote.run", True),
    "nv.match.all.sync.i32": ("emu.match.all.run.i32", True),
    "nv.match.all.sync.i64": ("emu.match.all.run.i64", True),
    "nv.match.any.sync.i32": ("emu.match.any.sync.i32", False),
    "nv.match.any.sync.i64": ("emu.match.any.sync.i64", False),
    "nv.bar.warp.sync": ("emu.bar.warp.sync", False),
    "nv.barrier0": ("emu.barrier0", False),
    "nv.barrier0.popc": ("emu.barrier0.popc", False),
    "nv.barrier0.and": ("emu.barrier0.and", False),
    "nv.barrier0.or": ("emu.barrier0.or", False),
}
"""Intrinsic -> run-time function, and whether the result is the pair in Thread.results."""


def split_arguments(rest: str) -> tuple[list[str], str]:
    """`a, b) tail` -> ([a, b], tail); brackets of every kind nest."""
    arguments: list[str] = []
    depth, start = 0, 0
    for i, c in enumerate(rest):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            if c == ")" and depth == 0:
                last = rest[start:i].strip()
                return [*arguments, last] if last else arguments, rest[i + 1 :]
            depth -= 1
        elif c == "," and depth == 0:
            arguments.append(rest[start:i].strip())
            start = i + 1
    raise UnsupportedKernel(f"unbalanced parentheses in IR: {rest}")


_GLOBAL = re.compile(
    r'^@(?P<name>"[^"]+"|[\w.$-]+) = .*?(?:constant|global) (?P<type>\[.*?\]|\{.*?\}|<.*?>|\w+) '
)


def _module_arrays(text: str) -> dict[str, int]:
    """Global variables of a module (constant arrays, strings) and their sizes in bytes."""
    matches = (_GLOBAL.match(line) for line in text.split("\n") if line.startswith("@"))
    return {m["name"].strip('"'): engine.size_of(m["type"]) for m in matches if m}


def _kept(line: str) -> bool:
    """Whether a line outside functions stays; the run time declares its own functions."""
    if line.startswith("declare "):
        return "@llvm." in line
    return not line.startswith(("target ", "source_filename", "; "))


class Lowering:
    """Step two over one module. Subclass hooks: `memory` sees every instruction that may access
    memory, `block_start` every basic block."""

    forces_fibers = False
    level = 1
    red_zone = 0
    watch_locals = False

    def __init__(self, text: str, entry: str) -> None:
        self.sites = Sites(text)
        self.entry = entry
        self.source = text
        self.out: list[str] = []
        self.sregs: dict[str, str] = {}
        self.instructions: dict[str, Instruction] = {}
        self.defined: set[str] = set()
        self.called: set[str] = set()
        self.parameters: list[str] = []
        self.symbol = ""
        self.fibers = self.forces_fibers
        self.cooperative = False
        self.stack_bytes = 0
        self.uninstrumented: list[str] = []
        self.globals = _module_arrays(text)
        self.blocks: list[dict[str, Counter[str]]] = []
        """For each basic block, where they are counted: source line -> kind of instruction -> how many."""
        self.counter = 0

    # ---- hooks
    def memory(self, line: str) -> str:
        """Called with each load, store, atomic or memory intrinsic; returns what to write."""
        return line

    def fence(self) -> None:
        """Called after each memory fence."""

    def block_start(self) -> None:
        """Called at the first instruction of each basic block that is not a phi."""

    def instruction(self, line: str) -> None:
        """Called with each instruction."""

    def function_start(self, header: str) -> None:
        """Called with each function's header."""

    def replaced_functions(self) -> list[NativeFunction]:
        """Functions that this mode takes from the run-time module instead of inlining them."""
        return []

    def extra_functions(self) -> list[NativeFunction]:
        """Functions that this mode adds to the kernel's module."""
        return []

    # ---- driver
    def run(self) -> str:
        lines = self.source.split("\n")
        self.defined = {m["name"] for line in lines if (m := _DEFINE.match(line))}
        inside = False
        fresh_block = False
        for line in lines:
            if inside:
                if line == "}":
                    inside = False
                    self._end_function()
                elif _LABEL.match(line):
                    self.out.append(line)
                    fresh_block = True
                elif line.strip() and not line.lstrip().startswith(";"):
                    if fresh_block and " = phi " not in line:
                        fresh_block = False
                        self.block_start()
                    self._instruction(line)
            elif line.startswith("define "):
                inside = True
                fresh_block = True
                self._start_function(line)
            elif _kept(line):
                self.out.append(line)
        return "\n".join(self.out)

    def _start_function(self, line: str) -> None:
        match = _DEFINE.match(line)
        assert match is not None
        arguments, tail = split_arguments(match["rest"])
        if match["name"].strip('"') == self.entry:
            self.parameters = [a.split()[0] for a in arguments]
            self.symbol = match["name"]
        result = _MODIFIERS.sub("", match["head"]).strip()
        joined = ", ".join(["ptr %emu.thread", *arguments])
        self.function_start(line)
        self.out.append(f"define internal {result} @{match['name']}({joined}){tail}")
        self.start = len(self.out)
        self.sregs = {}

    def _end_function(self) -> None:
        """Insert the loads of special registers where the function begins."""
        loads: list[str] = []
        for register, name in self.sregs.items():
            loads += self._register_load(register, name)
        at = self.start
        while at < len(self.out) and _LABEL.match(self.out[at]):
            at += 1
        self.out[at:at] = loads
        self.out.append("}")

    def _register_load(self, register: str, name: str) -> list[str]:
        if register == "shared":
            return self._block_field("shared", name, "ptr")
        if register == "lane":
            return self._thread_field("lane", name, "i32")
        stem = register.split("_")[0]
        load = self._thread_field if stem == "tid" else self._block_field
        return load(register, name, "i32")

    def _thread_field(self, field_name: str, name: str, kind: str) -> list[str]:
        place = f"  {name}.p = getelementptr i8, ptr %emu.thread, i64 {Thread.offset(field_name)}"
        return [place, f"  {name} = load {kind}, ptr {name}.p, !invariant.load !{{}}"]

    def _block_field(self, field_name: str, name: str, kind: str) -> list[str]:
        return [
            f"  {name}.t = getelementptr i8, ptr %emu.thread, i64 {Thread.offset('block')}",
            f"  {name}.b = load ptr, ptr {name}.t, !invariant.load !{{}}",
            f"  {name}.p = getelementptr i8, ptr {name}.b, i64 {Block.offset(field_name)}",
            f"  {name} = load {kind}, ptr {name}.p, !invariant.load !{{}}",
        ]

    def register(self, register: str) -> str:
        """The SSA value of a special register in the current function."""
        return self.sregs.setdefault(register, f"%emu.{register}")

    def site_of(self, line: str) -> int:
        """The site of an instruction; varieties may want one for each instruction."""
        return self.sites.number(line)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"%emu.{stem}{self.counter}"

    # ---- instructions
    def _instruction(self, line: str) -> None:
        self.instruction(line)
        asm = _ASM.match(line)
        if asm:
            self._inline_ptx(line, asm)
            return
        call = CALL.match(line)
        if call:
            self._call(line, call)
        elif " = alloca " in line:
            self._alloca(line)
        elif _ACCESS.match(line):
            self.out.append(self.memory(line))
        else:
            self.out.append(_CONTRACTED.sub(r"\1contract ", line))
        if _SPINNING.search(line):
            self._use("emu.yield")
            self.fibers = True
            self.cooperative = True
            site = self.sites.number(line)
            self.out.append(f"  call void @emu.yield(ptr %emu.thread, i32 {site})")
        if _FENCE.search(line):
            self.fence()

    def _alloca(self, line: str) -> None:
        kind = re.search(r"= alloca (.*?)(?:, align \d+)?(?:, !dbg.*)?$", line)
        assert kind is not None
        self.stack_bytes += engine.size_of(kind.group(1))
        self.out.append(line)

    def _use(self, symbol: str) -> None:
        self.called.add(symbol)

    def _inline_ptx(self, line: str, match: re.Match[str]) -> None:
        arguments, tail = split_arguments(match["rest"])
        debug = _debug(tail)
        site = self.site_of(line)
        prefix = f"{match['indent']}{match['result'] or ''}call {match['type']} "
        if match["text"].startswith("activemask"):
            self._use("emu.activemask")
            self.fibers = True
            self.out.append(f"{prefix}@emu.activemask(ptr %emu.thread, i32 {site}){debug}")
            return
        entry = find(match["text"])
        symbol = f"emu.ptx.{len(self.instructions)}"
        symbol = next((s for s, e in self.instructions.items() if e is entry), symbol)
        self.instructions[symbol] = entry
        if entry.scope in (Scope.WARP, Scope.WARPGROUP) or entry.blocks:
            self.fibers = True
        if entry.spins:
            self.cooperative = True
        arguments = [
            self._as_operand(a, LETTERS[c]) for a, c in zip(arguments, entry.inputs, strict=True)
        ]
        joined = ", ".join(["ptr %emu.thread", f"i32 {site}", *arguments])
        made = LETTERS[entry.outputs] if len(entry.outputs) == 1 else match["type"]
        wanted = match["type"].strip()
        if made == wanted or len(entry.outputs) != 1:
            self.out.append(f"{prefix}@{symbol}({joined}){debug}")
            return
        raw = self.fresh("raw")
        self.out.append(f"  {raw} = call {made} @{symbol}({joined}){debug}")
        self.out.append(f"  {match['result']}bitcast {made} {raw} to {wanted}")

    def _as_operand(self, argument: str, kind: str) -> str:
        """An argument as the operand type of the table's entry: pointers as integers, and so on."""
        given, value = argument.split()[0], argument.split()[-1]
        if given == kind:
            return f"{kind} {value}"
        name = self.fresh("operand")
        opcode = "ptrtoint" if given == "ptr" else "bitcast"
        self.out.append(f"  {name} = {opcode} {given} {value} to {kind}")
        return f"{kind} {name}"

    def _call(self, line: str, match: re.Match[str]) -> None:
        name = match["name"].strip('"')
        arguments, tail = split_arguments(match["rest"])
        result = match["result"] or ""
        sreg = _SREG.match(name)
        if sreg:
            self.out.append(f"  {result}add i32 {self.register(f'{sreg[1]}_{sreg[2]}')}, 0")
        elif name == "nv.read.ptx.sreg.laneid":
            self.out.append(f"  {result}add i32 {self.register('lane')}, 0")
        elif name == "nv.read.ptx.sreg.warpsize":
            self.out.append(f"  {result}add i32 32, 0")
        elif name in ("emu.shared", "emu.from_shared", "emu.to_shared"):
            self._shared_address(name, result, arguments[0])
        elif name in _WARP_OPERATIONS:
            self._warp_operation(line, name, result, match["type"], arguments, tail)
        elif name == "cudaCGSynchronize":
            self._grid_sync(line, result)
        elif name == "emu.local_array":
            self._use(name)
            joined = ", ".join(["ptr %emu.thread", *arguments])
            self.out.append(f"  {result}call ptr @emu.local_array({joined})")
        elif match["name"] in self.defined:
            joined = ", ".join(["ptr %emu.thread", *arguments])
            self.out.append(
                f"{match['indent']}{result}call {match['type'].replace('fastcc ', '')}"
                f"@{match['name']}({joined}){_debug(tail)}"
            )
            self.stack_bytes += 256 * 1024  # not inlined: recursion
        elif name == "cudaCGGetIntrinsicHandle":
            self.out.append(f"  {result}add i64 0, 0" if "i64" in match["type"] else line)
        else:
            self._use(name)
            self.out.append(self.memory(line))

    def _shared_address(self, name: str, result: str, argument: str) -> None:
        value = argument.split()[-1]
        shared = self.register("shared")
        if name == "emu.shared":
            self.out.append(f"  {result}getelementptr i8, ptr {shared}, i64 {value}")
        elif name == "emu.from_shared":
            number = self.fresh("offset")
            self.out.append(f"  {number} = ptrtoint ptr {value} to i64")
            self.out.append(f"  {result}getelementptr i8, ptr {shared}, i64 {number}")
        else:
            here, base, offset = (self.fresh(s) for s in ("here", "base", "offset"))
            self.out.append(f"  {here} = ptrtoint ptr {value} to i64")
            self.out.append(f"  {base} = ptrtoint ptr {shared} to i64")
            self.out.append(f"  {offset} = sub i64 {here}, {base}")
            self.out.append(f"  {result}inttoptr i64 {offset} to ptr")

    def _warp_operation(
        self, line: str, name: str, result: str, kind: str, arguments: list[str], tail: str
    ) -> None:
        self.fibers = True
        symbol, pair = _WARP_OPERATIONS[name]
        self._use(symbol)
        joined = ", ".join(["ptr %emu.thread", f"i32 {self.sites.number(line)}", *arguments])
        debug = _debug(tail)
        if not pair:
            self.out.append(f"  {result}call {kind}@{symbol}({joined}){debug}")
            return
        self._use("emu.results")
        self.out.append(f"  call void @{symbol}({joined}){debug}")
        if result:
            self.out.append(f"  {result}call {{ i32, i1 }} @emu.results(ptr %emu.thread)")

    def _grid_sync(self, line: str, result: str) -> None:
        self.fibers = True
        self.cooperative = True
        self._use("emu.grid_sync")
        site = self.sites.number(line)
        self.out.append(f"  call void @emu.grid_sync(ptr %emu.thread, i32 {site})")
        if result:
            self.out.append(f"  {result}add i32 0, 0")


_ACCESS = re.compile(r"^\s+(?:%\S+ = )?(?:load|store|atomicrmw|cmpxchg) ")


def _debug(tail: str) -> str:
    match = re.search(r", !dbg !\d+", tail)
    return match.group() if match else ""


def lower(source: KernelSource, variety: type[Lowering] = Lowering) -> tuple[Lowered, Lowering]:
    """Both steps; `variety` is the kind of step two."""
    layout = _SharedLayout(red_zone=variety.red_zone)
    texts = _step_one(source, layout, variety.watch_locals)
    dynamic_offset = layout.finish()
    text = _link(texts, layout, source.entry, variety.level)
    step = variety(text, source.entry)
    body = step.run()
    lowered = Lowered(
        name=source.name,
        symbol=step.symbol,
        parameters=step.parameters,
        text=body,
        sites=step.sites.lines,
        shared=layout.arrays,
        static_bytes=layout.end + layout.gaps,
        dynamic_offset=dynamic_offset,
        uses_dynamic=bool(layout.dynamic),
        instructions=step.instructions,
        called=step.called,
        fibers=step.fibers,
        cooperative=step.cooperative,
        stack_bytes=step.stack_bytes,
        uninstrumented=step.uninstrumented,
    )
    return lowered, step
