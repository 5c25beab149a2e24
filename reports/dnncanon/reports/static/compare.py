"""Comparison of two static reports: which figures of which kernels changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dnncanon.reports.formatting import first_line, format_number, printable
from dnncanon.reports.markdown import cell as plain
from dnncanon.reports.markdown import code
from dnncanon.reports.static.records import KernelFigures, StaticReport

COMPARED = (
    *("registers", "spill_bytes", "stack_bytes", "shared_bytes", "barriers", "occupancy"),
    *("loop_instructions", "loop_operations", "predicted", "bound_by", "refused"),
)
"""Figures whose change is told."""

NOTABLE = 0.01
"""A prediction or an occupancy that falls by less is not worse."""

Key = tuple[str, str, str]


@dataclass(frozen=True)
class KernelChange:
    """A kernel on one architecture in both reports."""

    old: KernelFigures
    new: KernelFigures

    @property
    def changed(self) -> list[tuple[str, str, str]]:
        """Figure, before, now."""
        pairs = ((name, getattr(self.old, name), getattr(self.new, name)) for name in COMPARED)
        return [(name, _words(old), _words(new)) for name, old, new in pairs if old != new]

    @property
    def worse(self) -> bool:
        """More spills, no longer compiled, or a prediction that fell."""
        if self.new.refused or self.old.refused:
            return not self.old.refused
        before, now = self.old.predicted, self.new.predicted
        fell = before is not None and now is not None and now < before - NOTABLE
        return self.new.spill_bytes > self.old.spill_bytes or fell


@dataclass(frozen=True)
class StaticComparison:
    """What differs between two reports. A kernel is known by name, one that launches it, architecture."""

    old: StaticReport
    new: StaticReport
    changes: tuple[KernelChange, ...]
    unchanged: int
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether a kernel became worse."""
        return any(change.worse for change in self.changes)

    def text(self) -> str:
        """The comparison for the terminal, plain text."""
        return printable("\n".join(_text_lines(self)) + "\n")

    def markdown(self) -> str:
        """The comparison in GitHub-flavoured Markdown."""
        return printable("".join(_markdown_blocks(self)))


def compare_static(old: StaticReport, new: StaticReport) -> StaticComparison:
    """Compare two reports. Of kernels that differ in their constants only, equal ones are matched."""
    before, after = _by_key(old.kernels), _by_key(new.kernels)
    pairs: dict[tuple[int, int], KernelChange] = {}
    matched: set[int] = set()
    for key in before.keys() & after.keys():
        for ours, theirs in _matches(before[key], after[key]):
            pairs[id(ours), id(theirs)] = KernelChange(ours, theirs)
            matched |= {id(ours), id(theirs)}
    changes = sorted(
        (change for change in pairs.values() if change.changed),
        key=lambda change: (not change.worse, change.new.label, change.new.architecture),
    )
    return StaticComparison(
        old=old,
        new=new,
        changes=tuple(changes),
        unchanged=len(pairs) - len(changes),
        only_old=_names(k for k in old.kernels if id(k) not in matched),
        only_new=_names(k for k in new.kernels if id(k) not in matched),
    )


def _by_key(kernels: Iterable[KernelFigures]) -> Mapping[Key, list[KernelFigures]]:
    """The same figures are under each primitive that launches the kernel."""
    found: dict[Key, list[KernelFigures]] = defaultdict(list)
    for figures in kernels:
        for launcher in figures.launched_by:
            found[figures.kernel, launcher, figures.architecture].append(figures)
    return found


def _matches(
    old: Sequence[KernelFigures], new: Sequence[KernelFigures]
) -> Iterator[tuple[KernelFigures, KernelFigures]]:
    """The one with the one, whatever its constants; of several those with equal constants."""
    if len(old) == len(new) == 1:
        yield old[0], new[0]
        return
    for ours in old:
        yield from ((ours, theirs) for theirs in new if theirs.constants == ours.constants)


def _names(kernels: Iterable[KernelFigures]) -> tuple[str, ...]:
    return tuple(sorted(f"{k.label} {k.architecture}" for k in kernels))


# --- wording --------------------------------------------------------------------------------------


def _words(value: object) -> str:
    if isinstance(value, str):
        return first_line(value, 80) or "no"
    return format_number(value) if isinstance(value, int | float) or value is None else str(value)


def _verdict_line(comparison: StaticComparison) -> str:
    worse = sum(change.worse for change in comparison.changes)
    return f"✗ {worse:,} kernels became worse." if worse else "✓ No kernel became worse."


def _counts_line(comparison: StaticComparison) -> str:
    return (
        f"{len(comparison.changes):,} changed, {comparison.unchanged:,} unchanged, "
        f"{len(comparison.only_old):,} only in the old report, {len(comparison.only_new):,} only in the new."
    )


def _versions(comparison: StaticComparison) -> Iterator[str]:
    """Toolchains that differ explain figures that do."""
    old, new = comparison.old.environment.versions, comparison.new.environment.versions
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{name}: {old.get(name, 'none')} -> {new.get(name, 'none')}"


def _text_lines(comparison: StaticComparison) -> Iterator[str]:
    yield f"old: {comparison.old.environment.created}  new: {comparison.new.environment.created}"
    yield from _versions(comparison)
    yield _counts_line(comparison)
    for change in comparison.changes:
        mark = "✗" if change.worse else " "
        yield f"\n{mark} {change.new.label} {change.new.architecture}"
        yield from (f"    {name}: {old} -> {new}" for name, old, new in change.changed)
    for title, names in (("Gone", comparison.only_old), ("New", comparison.only_new)):
        if names:
            yield f"\n{title}: {len(names):,}"
            yield from (f"  {name}" for name in names)
    yield f"\n{_verdict_line(comparison)}"


def _markdown_blocks(comparison: StaticComparison) -> Iterator[str]:
    yield f"## dnncanon: comparison of two static reports\n\n**{_verdict_line(comparison)}**\n\n"
    yield f"{_counts_line(comparison)}\n"
    yield from (f"\n- {plain(line)}" for line in _versions(comparison))
    if comparison.changes:
        yield "\n\n| | kernel | figure | old | new |\n| --- | --- | --- | ---: | ---: |\n"
    for change in comparison.changes:
        mark = "✗" if change.worse else ""
        name = code(f"{change.new.label} {change.new.architecture}")
        for figure, old, new in change.changed:
            yield f"| {mark} | {name} | {figure} | {plain(old)} | {plain(new)} |\n"
    for title, names in (("Gone", comparison.only_old), ("New", comparison.only_new)):
        if names:
            yield f"\n### {title}: {len(names):,}\n\n"
            yield from (f"- {code(name)}\n" for name in names)
