"""The kernels of normalization by sets, and the source that they are put together from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from textwrap import indent
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels import norm
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.norm_geometry import Form
from dnncanon.gpu.kernels.rows import THREADS, WARP, team_of, team_reduce, team_sum
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import generated, types
from dnncanon.gpu.runtime.device_index import advance, digits_of, places


@dataclass(frozen=True, slots=True)
class _Source:
    """The parts of a kernel's source that all have. ``given`` says which rowwise inputs there are."""

    form: Form
    given: dict[int, str]

    @property
    def declared(self) -> str:
        """Shared memory, and what all sets share in it."""
        form = self.form
        lines = [
            form.kept.declared,
            f"row_values = cuda.shared.array({THREADS * len(form.lines.inputs)}, number)",
        ]
        for place, k in enumerate(form.shared):
            lines += [
                f"shared{k} = cuda.shared.array(0, shared_word{k})",
                f"shared_first{k} = firsts[{1 + place}]",
            ]
        if form.parts:
            lines += ["sums = cuda.shared.array(0, number)"]
        return "\n".join(lines)

    @property
    def begin(self) -> str:
        """The teams; what all sets share is read; sums begin with 0."""
        lines = [
            "counts, row_extents, row_strides, extents, strides, step, origins = rows",
            "row_count, columns, width, spacing = counts",
            "thread = int64(cuda.threadIdx.x)",
            "member, in_block = team_of(thread, width, spacing)",
            f"per_block = {THREADS} // width",
            "tile = int64(cuda.blockIdx.x)",
        ]
        form = self.form
        if form.shared:
            lines += [
                "column = thread",
                "while column < columns:",
                "    at = places(digits_of(column, extents), strides, origins)",
                *(f"    {line}" for k in form.shared for line in self._share(k)),
                f"    column += {THREADS}",
                "cuda.syncthreads()",
            ]
        if form.parts:
            lines += [
                f"for index in range((columns + width - 1) // width * {2 * form.count}):",
                f"    sums[index * {THREADS} + thread] = zero",
            ]
        return "\n".join(lines)

    def _share(self, k: int) -> list[str]:
        words = self.form.words(k)[1]
        if self.form.aligned:
            puts = [f"{self._shared(k, str(e))} = c{k}[{e}]" for e in range(words)]
            return [f"c{k} = load_chunk(x{k}, at[{k}])", *puts]
        return [
            f"for element in range({words}):",
            f"    {self._shared(k)} = x{k}[uint64(at[{k}] + element)]",
        ]

    def _shared(self, k: int, element: str = "element") -> str:
        return f"shared{k}[shared_first{k} + {element} * columns + column]"

    @property
    def row(self) -> str:
        """The set of the team, and what there is one of for the set.

        A thread reads that for all of its team, of which there are several warps.
        """
        reads = {
            k: f"to_sum{k}(x{k}[uint64(bases[{k}])])" for k in self.form.rowwise if k in self.given
        }
        lines = [
            "row = tile * per_block + in_block",
            "bases = places(digits_of(row, row_extents), row_strides, origins)",
            "start, end = member, columns if row < row_count else int64(0)",
            *(f"v{k} = zero" for k in self.form.rowwise),
        ]
        if reads:
            lines += [
                f"if width * spacing > {WARP}:",
                "    if member == 0 and row < row_count:",
                *(
                    f"        if {self.given[k]}: row_values[{k * THREADS} + in_block] = {read}"
                    for k, read in reads.items()
                ),
                "    cuda.syncthreads()",
                "    if row < row_count:",
                *(
                    f"        if {self.given[k]}: v{k} = row_values[{k * THREADS} + in_block]"
                    for k in reads
                ),
                "elif row < row_count:",
                *(f"    if {self.given[k]}: v{k} = {read}" for k, read in reads.items()),
            ]
        return "\n".join(lines)

    def value(self, k: int) -> str:
        """The number of an input's element."""
        if k in self.form.rowwise:
            return f"v{k}"
        chunked = self.form.aligned and k not in self.form.still
        return f"to_sum{k}(chunk_first(x{k}, c{k}))" if chunked else f"to_sum{k}(w{k})"

    def loop(
        self,
        inputs: Sequence[int],
        body: Sequence[str],
        *,
        first: bool,
        outputs: str = "",
        put: str = "",
        begin: str = "",
        finish: str = "",
    ) -> str:
        """Over what a thread takes of the team's set: ``body`` for each element of these inputs.

        The ``first`` loop reads what is kept. ``outputs`` goes before the elements of what is taken at once and
        ``put`` behind them, ``begin`` before those of a segment and ``finish`` behind them.
        """
        form = self.form
        walking = [k for k in inputs if k not in form.rowwise]
        moving = [k for k in walking if k not in form.still]
        stills = [f"w{k} = x{k}[uint64(at[{k}])]" for k in walking if k in form.still]
        reading = self._reading(moving, first=first)
        chunk, element = (reading, "") if form.aligned else ("", reading)
        drop = "; ".join(f"c{k} = chunk_rest(x{k}, c{k})" for k in moving) if form.aligned else ""
        turn = [
            "at = places(digits, strides, bases)",
            *stills,
            chunk,
            outputs,
            f"for element in range({form.count}):",
            indent("\n".join(filter(None, (element, *body, drop))), "    "),
            put,
            "digits = advance(digits, step, extents)",
            "column += width",
            "slot += 1",
        ]
        turns = indent("\n".join(filter(None, turn)), "    ")
        if not form.segmented:
            return f"""
digits = digits_of(start, extents)
column, slot = start, 0
while column < end:
{turns}"""
        return f"""
segment, slot = int64(0), 0
while segment < columns:
    digits = digits_of(segment + member, extents)
    column, stop = segment + member, min(end, segment + extents[-1])
{indent(begin, "    ")}
    while column < stop:
{indent(turns, "    ")}
{indent(finish, "    ")}
    segment += extents[-1]"""

    def _reading(self, moving: Sequence[int], *, first: bool) -> str:
        form = self.form
        kept = replace(form.kept, operands=tuple(o for o in form.kept.operands if o[0] in moving))
        name, read, place = "w{k}", "x{k}[uint64(at[{k}] + element)]", "element"
        if form.aligned:
            name, read, place = "c{k}", "load_chunk(x{k}, at[{k}])", "0"

        def line(k: int, text: str) -> str:
            return f"{name} = {text}".replace("{k}", str(k))

        lines = []
        for k in moving:
            if k in form.shared:
                lines.append(line(k, self._from_shared(k)))
            elif first or k not in form.kept_inputs:
                lines.append(line(k, read))
        lines.append(kept.keep(name, place) if first else kept.recall(name, read, place))
        return "\n".join(line for line in lines if line != "pass")

    def _from_shared(self, k: int) -> str:
        if not self.form.aligned:
            return self._shared(k)
        second = self._shared(k, "1") if self.form.words(k)[1] > 1 else "uint64(0)"
        return f"({self._shared(k, '0')}, {second})"

    def store(self, elements: int) -> dict[str, str]:
        """The arguments of ``loop`` for outputs of numbers r0, r1, …; and ``"store"``, a line of the body."""
        inputs = len(self.form.lines.inputs)
        if not self.form.aligned:
            puts = [
                f"y{k}[uint64(at[{inputs + k}] + element)] = from_sum{k}(r{k})"
                for k in range(elements)
            ]
            return {"store": "; ".join(puts), "outputs": "", "put": ""}
        each = range(elements)
        return {
            "store": "; ".join(f"d{k} = chunk_append(y{k}, d{k}, from_sum{k}(r{k}))" for k in each),
            "outputs": "; ".join(f"d{k} = (uint64(0), uint64(0))" for k in each),
            "put": "; ".join(f"store_chunk(y{k}, at[{inputs + k}], d{k})" for k in each),
        }

    @property
    def scope(self) -> dict[str, Any]:
        """What the names in the source mean."""
        form, lines = self.form, self.form.lines
        number = ELEMENTS[lines.inputs[0]].sum
        chunks = {}
        if form.aligned:
            chunks = {
                "load_chunk": ptx.load_chunk(form.count),
                "store_chunk": ptx.store_chunk(form.count),
                "chunk_append": ptx.chunk_append(form.count),
            }
        return {
            **lines.scope,
            **form.kept.scope,
            **{f"shared_word{k}": getattr(types, form.words(k)[0]) for k in form.shared},
            **chunks,
            "chunk_first": ptx.chunk_first,
            "chunk_rest": ptx.chunk_rest,
            "digits_of": digits_of,
            "advance": advance,
            "places": places,
            "team_of": team_of,
            "team_sum": team_sum(number),
            "team": team_reduce(norm.add_pairs, (number, number)),
            "sqrt": sqrt,
            "number": number,
            "zero": number(0),
            "one": number(1),
        }


def _moments(source: _Source, x: int, inputs: Sequence[int]) -> str:
    """Σ x, the mean and Σ (x − mean)² of a team's ``count`` elements.

    The first loop reads ``inputs``, x among them. Squares of distances from the mean are added up: with the
    mean of squares less the square of the mean, a mean far larger than the spread would leave no correct digit.
    """
    total = source.loop(inputs, [f"total += {source.value(x)}"], first=True)
    value = source.value(x)
    squares = source.loop(
        [x],
        [
            f"distance = {value} - mean if centred != 0 else {value}",
            "squares += distance * distance",
        ],
        first=False,
    )
    return f"""
total = zero
{total}
mean = zero
if centred != 0:
    total = team_sum(total, width, spacing)
    mean = total / count
squares = zero
{squares}
squares = team_sum(squares, width, spacing)
"""


_STATISTICS = """
variance = squares / count
inv_std = one / sqrt(variance + epsilon)
"""


# --- Kernels --------------------------------------------------------------------------------------


@cache
def moments(form: Form) -> tuple[Form, Kernel]:
    """The kernel of ``moments``. Launch with THREADS threads; the grid may have any size."""
    source = _Source(form, {})
    text = f"""
def norm_rows_moments(inputs, outputs, given, rows, room, splitting):
    {form.lines.unpack}
    splits, stretch = splitting
    centred = s0
{indent(source.declared, "    ")}
{indent(source.begin, "    ")}
    while tile < (row_count + per_block - 1) // per_block * splits:
        split = tile % splits
        row = tile // splits * per_block + in_block
        bases = places(digits_of(row, row_extents), row_strides, origins)
        start, end = split * stretch + member, int64(0)
        if row < row_count:
            end = min(columns, (split + 1) * stretch)
        elements = max(int64(0), (end - split * stretch) * {form.count})
        count = number(elements)
{indent(_moments(source, 0, [0]), "        ")}
        if member == 0 and row < row_count:
            place = uint64(split * row_count + row)
            y0[place] = total
            y1[place] = squares
            y2[place] = count
        tile += cuda.gridDim.x
"""
    return form, kernel(generated(text, source.scope))


@cache
def forward(form: Form, residual: bool) -> tuple[Form, Kernel]:
    """The kernel of ``normalise``. Launch with THREADS threads; the grid may have any size."""
    lines, inputs = form.lines, len(form.lines.inputs)
    source = _Source(form, {1: "scaled != 0", 2: "shifted != 0", 3: "True"})
    z = f", {source.value(3)}" if residual else ""
    flags = ", ".join(f"s{k}" for k in range(2, 7))
    stores = source.store(1)
    result = source.loop(
        range(inputs),
        [
            f"r0 = normalised({source.value(0)}, mean, inv_std, {source.value(1)}, "
            f"{source.value(2)}{z}, {flags})",
            stores["store"],
        ],
        first=False,
        outputs=stores["outputs"],
        put=stores["put"],
    )
    text = f"""
def norm_rows_forward(inputs, outputs, given, rows, room, firsts):
    {lines.unpack}
    count, epsilon, centred, scaled, shifted = s0, s1, s3, s4, s5
{indent(source.declared, "    ")}
{indent(source.begin, "    ")}
    while tile < (row_count + per_block - 1) // per_block:
{indent(source.row, "        ")}
{indent(_moments(source, 0, [0]) + _STATISTICS, "        ")}
{indent(result, "        ")}
        if member == 0 and row < row_count:
            if s7 != 0: y1[uint64(bases[{inputs + 1}])] = from_sum1(mean)
            if s8 != 0: y2[uint64(bases[{inputs + 2}])] = from_sum2(inv_std)
            if s9 != 0: y3[uint64(bases[{inputs + 3}])] = from_sum3(variance)
        tile += cuda.gridDim.x
"""
    kind = ELEMENTS[lines.inputs[0]].sum_dtype.name
    function = norm.normalised(kind, residual=residual)
    return form, kernel(generated(text, source.scope | {"normalised": function}))


@cache
def backward(form: Form, masked: bool, own: bool) -> tuple[Form, Kernel]:
    """The kernel of ``differentiate``. Launch with THREADS threads; the grid may have any size.

    With ``own`` statistics it computes them first.
    """
    lines = form.lines
    elements = len(lines.outputs) - (4 if form.parts else 2)
    given = {4: "(scaled != 0 or factored != 0)", 5: "True"}
    source = _Source(form, given if own else {2: "True", 3: "True", **given})
    read = (0, 1, 5) if masked else (0, 1)
    y = f", {source.value(5)}" if masked else ""
    dy_x = f"{source.value(0)}, {source.value(1)}"
    operands = f"{dy_x}, mean, inv_std, {source.value(4)}"
    stores = source.store(elements)
    adding = [f"a, b = lift({dy_x}{y}, mean, inv_std, zero, offset, 0, centred)"]
    if form.segmented:
        adding += ["part_g += a", "part_gx += b"]
    else:
        adding += [
            f"factor = offset + {source.value(4)} if scaled != 0 else one",
            "sum_g += factor * a",
            "sum_gx += factor * b",
        ]
    if form.parts:
        adding += [
            f"place = (slot * {form.count} + element) * {2 * THREADS} + thread",
            f"sums[place] += a; sums[place + {THREADS}] += b",
        ]
    results = ", ".join(f"r{k}" for k in range(elements))
    result = source.loop(
        (*read, 4),
        [
            f"{results} = gradient({operands}, sum_g, sum_gx{y}, s0, s1, s2, s3, s4, s5)",
            stores["store"],
        ],
        first=False,
        outputs=stores["outputs"],
        put=stores["put"],
    )
    statistics = _moments(source, 1, read) + _STATISTICS if own else "mean, inv_std = v2, v3"
    if form.segmented:
        sums = source.loop(
            read,
            adding,
            first=not own,
            begin="part_g, part_gx = zero, zero",
            finish=_segment(form, elements),
        )
    else:
        sums = source.loop((*read, 4), adding, first=not own)
        sums += "\nsum_g, sum_gx = team((sum_g, sum_gx), width, spacing)"
    text = f"""
def norm_rows_backward(inputs, outputs, given, rows, room, firsts):
    {lines.unpack}
    count, offset, scaled, factored, centred, epsilon = s0, s1, s2, s3, s4, s6
{indent(source.declared, "    ")}
{indent(source.begin, "    ")}
    while tile < (row_count + per_block - 1) // per_block:
{indent(source.row, "        ")}
{indent(statistics, "        ")}
        sum_g, sum_gx = zero, zero
{indent(sums, "        ")}
{indent(result, "        ")}
{indent("" if form.segmented else _sums(form, elements, "bases", "sum"), "        ")}
        tile += cuda.gridDim.x
{indent(_parts(form, elements), "    ")}
"""
    kind = ELEMENTS[lines.inputs[0]].sum_dtype.name
    scope = {
        "lift": norm.gradient_sums(kind, masked=masked).lift,
        "gradient": norm.input_gradient(kind, masked=masked, forked=elements > 1),
    }
    return form, kernel(generated(text, source.scope | scope))


def _segment(form: Form, elements: int) -> str:
    """The sums of a segment, what they count in those of the set, and their outputs."""
    scale = "v4" if 4 in form.rowwise else "to_sum4(x4[uint64(at[4])])"
    return f"""
part_g, part_gx = team((part_g, part_gx), width, spacing)
if row < row_count:
    at = places(digits_of(segment, extents), strides, bases)
    factor = offset + {scale} if scaled != 0 else one
    sum_g += factor * part_g
    sum_gx += factor * part_gx
{_sums(form, elements, "at", "part")}"""


def _sums(form: Form, elements: int, at: str, name: str) -> str:
    """Both sums as outputs, by the first thread of a team."""
    inputs, (first, second) = len(form.lines.inputs), (elements, elements + 1)
    return f"""
if member == 0 and row < row_count:
    if s7 != 0: y{first}[uint64({at}[{inputs + first}])] = from_sum{first}({name}_g)
    if s8 != 0: y{second}[uint64({at}[{inputs + second}])] = from_sum{second}({name}_gx)"""


def _parts(form: Form, elements: int) -> str:
    """The sums of each element over the sets of the block, those of its teams added up."""
    if not form.parts:
        return ""
    first, second = elements + 2, elements + 3
    return f"""
cuda.syncthreads()
index = thread
while index < columns * {form.count}:
    column, element = index // {form.count}, index % {form.count}
    place = (column // width * {form.count} + element) * {2 * THREADS} + column % width
    a, b = zero, zero
    for _ in range(per_block):
        a += sums[place]; b += sums[place + {THREADS}]
        place += width
    at = int64(cuda.blockIdx.x) * columns * {form.count} + index
    if s9 != 0: y{first}[uint64(at)] = a
    if s10 != 0: y{second}[uint64(at)] = b
    index += {THREADS}"""
