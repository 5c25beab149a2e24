"""The one operation that convolution and its gradients are: a grouped correlation over strided memory.

    out[g, b, j, q] = Σ_{r, t} source[g, b, r, q·step + t·gap − shift] · filter[g, j, r, t]

with source = 0 outside its extents. q, t, step, gap and shift have three spatial dims; problems with
fewer are given leading dims of extent 1. What is batch, channel or tap is a matter of strides:

| | b | j | q | r | t |
| --- | --- | --- | --- | --- | --- |
| forward | batch | output channel | output position | input channel | filter tap |
| backward data | batch | input channel | input position | output channel | filter tap |
| backward filter | input channel | output channel | filter tap | batch | output position |

Backward filter swaps stride and dilation. Backward data falls into one correlation for each residue
of the input position by the stride; each has its own subset of taps, reversed. The mode
"convolution" reverses the taps. Reversal is a negative stride.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dnncanon.gpu.runtime.array import Strided, origin
from dnncanon.spec.conv import ConvProblem

Triple = tuple[int, int, int]
SPATIAL = 3


MANY_UNREACHED = 64
"""Residues without taps from which on zeros are written in one launch and not in one for each."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor's elements are: offset + group·g + outer·(b or j) + inner·(r or j) + Σ spatial."""

    offset: int
    group: int
    outer: int
    inner: int
    spatial: Triple

    @property
    def strides(self) -> tuple[int, ...]:
        """As kernels take it: offset, group, outer, inner, three spatial strides."""
        return (self.offset, self.group, self.outer, self.inner, *self.spatial)

    def reversed(self, extents: Sequence[int]) -> "Layout":
        """With the spatial dims, of these extents, read backwards."""
        pairs = list(zip(extents, self.spatial, strict=True))
        offset = self.offset + sum((n - 1) * s for n, s in pairs if n > 0)
        return Layout(offset, self.group, self.outer, self.inner, _triple(-s for _, s in pairs))

    def every(self, first: Sequence[int], step: Sequence[int]) -> "Layout":
        """Of the spatial positions only first, first + step, …"""
        offset = self.offset + sum(f * s for f, s in zip(first, self.spatial, strict=True))
        spatial = _triple(n * s for n, s in zip(step, self.spatial, strict=True))
        return Layout(offset, self.group, self.outer, self.inner, spatial)


@dataclass(frozen=True, slots=True)
class Correlation:
    """Extents and layouts of one correlation; names as in the module's formula."""

    groups: int
    batch: int
    channels_out: int
    positions: Triple
    channels_in: int
    taps: Triple
    extents: Triple
    step: Triple
    gap: Triple
    shift: Triple
    source: Layout
    filter: Layout
    out: Layout

    @property
    def size(self) -> int:
        """How many output elements."""
        return self.groups * self.batch * self.channels_out * math.prod(self.positions)

    @property
    def rows(self) -> int:
        """b and q together, of one group."""
        return self.batch * math.prod(self.positions)

    @property
    def depth(self) -> int:
        """Length of the sums."""
        return self.channels_in * math.prod(self.taps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """As kernels take it: groups, batch, channels_out, positions, channels_in, taps."""
        return (
            self.groups,
            self.batch,
            self.channels_out,
            *self.positions,
            self.channels_in,
            *self.taps,
        )

    @property
    def window(self) -> tuple[int, ...]:
        """As kernels take it: extents, step, gap, shift."""
        return (*self.extents, *self.step, *self.gap, *self.shift)

    @property
    def channels_adjacent(self) -> bool:
        """Whether the output's nearest neighbours in memory are channels, not positions."""
        channels = nearest([self.out.group, self.out.inner], [self.groups, self.channels_out])
        return channels < nearest(self.out.spatial, self.positions)


def nearest(strides: Sequence[int], extents: Sequence[int]) -> float:
    """The least distance in memory between neighbours; infinite where there are none."""
    pairs = zip(strides, extents, strict=True)
    return min((abs(stride) for stride, extent in pairs if extent > 1), default=math.inf)


def forward(p: ConvProblem, x: Strided, w: Strided, y: Strided) -> Correlation:
    """y as a correlation of x with w."""
    return Correlation(
        groups=p.groups,
        batch=p.batch,
        channels_out=p.out_channels // p.groups,
        positions=_pad(p.output_size, 1),
        channels_in=p.in_channels // p.groups,
        taps=_pad(p.filter_size, 1),
        extents=_pad(p.input_size, 1),
        step=_pad(p.stride, 1),
        gap=_pad(p.dilation, 1),
        shift=_pad([pre for pre, _ in p.padding], 0),
        source=_activation(x, p.in_channels // p.groups),
        filter=_filter(p, w),
        out=_activation(y, p.out_channels // p.groups),
    )


def backward_data(p: ConvProblem, dy: Strided, w: Strided, dx: Strided) -> Iterator[Correlation]:
    """dx as correlations of dy with w, one for each residue of the input position by the stride.

    They write disjoint parts of dx; only where many residues meet no tap, zeros are written everywhere
    first, and then the residues that meet one, of which there are no more than taps.
    """
    whole = _filter(p, w)
    source = _activation(dy, p.out_channels // p.groups)
    out = _activation(dx, p.in_channels // p.groups)
    dims = zip(
        _pad(p.input_size, 1),
        _pad(p.filter_size, 1),
        _pad(p.stride, 1),
        _pad(p.dilation, 1),
        _pad([pre for pre, _ in p.padding], 0),
        strict=True,
    )
    residues = [list(_phases(*dim)) for dim in dims]
    reached = [[phase for phase in of_dim if phase.taps] for of_dim in residues]
    if math.prod(map(len, residues)) - math.prod(map(len, reached)) > MANY_UNREACHED:
        yield _zeros(p, source, whole, out)
        residues = reached
    for phases in itertools.product(*residues):
        taps = _triple(phase.taps for phase in phases)
        subset = whole.every([ph.first_tap for ph in phases], [ph.tap_step for ph in phases])
        filters = Layout(subset.offset, subset.group, whole.inner, whole.outer, subset.spatial)
        yield Correlation(
            groups=p.groups,
            batch=p.batch,
            channels_out=p.in_channels // p.groups,
            positions=_triple(phase.positions for phase in phases),
            channels_in=p.out_channels // p.groups,
            taps=taps,
            extents=_pad(p.output_size, 1),
            step=(1, 1, 1),
            gap=_triple(phase.gap for phase in phases),
            shift=_triple(phase.shift for phase in phases),
            source=source,
            filter=filters.reversed(taps),
            out=out.every([ph.first_position for ph in phases], _pad(p.stride, 1)),
        )


def _zeros(p: ConvProblem, source: Layout, whole: Layout, out: Layout) -> Correlation:
    """A correlation without taps over all of dx: zeros everywhere, for others to write over."""
    return Correlation(
        groups=p.groups,
        batch=p.batch,
        channels_out=p.in_channels // p.groups,
        positions=_pad(p.input_size, 1),
        channels_in=p.out_channels // p.groups,
        taps=(0, 0, 0),
        extents=_pad(p.output_size, 1),
        step=(1, 1, 1),
        gap=(1, 1, 1),
        shift=(0, 0, 0),
        source=source,
        filter=Layout(whole.offset, whole.group, whole.inner, whole.outer, whole.spatial),
        out=out,
    )


def backward_filter(p: ConvProblem, x: Strided, dy: Strided, dw: Strided) -> Correlation:
    """dw as a correlation of x with dy in which batch and channels change places."""
    source = _activation(x, p.in_channels // p.groups)
    gradient = _activation(dy, p.out_channels // p.groups)
    out = _filter(p, dw)
    return Correlation(
        groups=p.groups,
        batch=p.in_channels // p.groups,
        channels_out=p.out_channels // p.groups,
        positions=_pad(p.filter_size, 1),
        channels_in=p.batch,
        taps=_pad(p.output_size, 1),
        extents=_pad(p.input_size, 1),
        step=_pad(p.dilation, 1),
        gap=_pad(p.stride, 1),
        shift=_pad([pre for pre, _ in p.padding], 0),
        source=Layout(source.offset, source.group, source.inner, source.outer, source.spatial),
        filter=Layout(
            gradient.offset, gradient.group, gradient.inner, gradient.outer, gradient.spatial
        ),
        out=Layout(out.offset, out.group, out.inner, out.outer, out.spatial),
    )


@dataclass(frozen=True, slots=True)
class _Phase:
    """One residue of the input position by the stride, in one spatial dim."""

    first_position: int
    positions: int
    first_tap: int
    tap_step: int
    taps: int
    gap: int
    shift: int


def _phases(extent: int, filter_extent: int, u: int, dilation: int, pre: int) -> Iterator[_Phase]:
    """The residues that occur.

    An input position i = first + u·q is reached by the taps f with f·l ≡ i + pre (mod u). They are
    f = f₀ + j·u/d with d = gcd(l, u), from the output positions o = q + (first + pre − f₀·l)/u − j·l/d.
    With the taps reversed, o rises with them: a correlation with step 1 and gap l/d.
    """
    divisor = math.gcd(dilation, u)
    tap_step, gap = u // divisor, dilation // divisor
    first_taps: dict[int, int] = {}
    for f in range(min(tap_step, filter_extent)):
        first_taps.setdefault((f * dilation - pre) % u, f)
    for first in range(min(u, extent)):
        positions = -(-(extent - first) // u)
        first_tap = first_taps.get(first, filter_extent)
        taps = max(0, -(-(filter_extent - first_tap) // tap_step))
        shift = (taps - 1) * gap - (first + pre - first_tap * dilation) // u
        yield _Phase(first, positions, first_tap if taps else 0, tap_step, taps, gap, shift)


def residual_layout(p: ConvProblem, z: Strided) -> Layout:
    """Of a tensor that is shaped as y."""
    return _activation(z, p.out_channels // p.groups)


def _activation(tensor: Strided, group_channels: int) -> Layout:
    """Of x, y, dx, dy, z: (N, C, spatial…)."""
    batch, channel, *spatial = tensor.strides
    return Layout(origin(tensor), group_channels * channel, batch, channel, _pad(spatial, 0))


def _filter(p: ConvProblem, tensor: Strided) -> Layout:
    """Of w, dw: (K, C/groups, taps…), reversed for the mode "convolution"."""
    out_channel, in_channel, *spatial = tensor.strides
    group = p.out_channels // p.groups * out_channel
    layout = Layout(origin(tensor), group, out_channel, in_channel, _pad(spatial, 0))
    return layout.reversed(_pad(p.filter_size, 1)) if p.mode == "convolution" else layout


def _pad(values: Sequence[int], filler: int) -> Triple:
    return _triple((*[filler] * (SPATIAL - len(values)), *values))


def _triple(values: Sequence[int] | Iterator[int]) -> Triple:
    first, second, third = values
    return first, second, third
