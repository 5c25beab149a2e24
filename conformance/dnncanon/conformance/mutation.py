"""Making a mutant: a room of this package, loaded once more with one place of its source changed."""

import difflib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType

from dnncanon.spec.mutant import Mutant

GROUP = "dnncanon.mutants"
PREFIX = "mutant:"

# The catalogues of this package, for a checkout that runs through PYTHONPATH and so has no metadata.
_SHIPPED = {"reference": "dnncanon.reference.mutants", "gpu": "dnncanon.gpu.mutants"}


class MutantError(Exception):
    """A mutant that cannot be made; the message says why."""


def catalogue() -> Mapping[str, Mutant]:
    """All mutants of all rooms, by name; rooms that cannot be imported here have none."""
    modules = {**_SHIPPED, **{p.name: p.value for p in entry_points(group=GROUP)}}
    found: dict[str, Mutant] = {}
    for module in modules.values():
        try:
            mutants = importlib.import_module(module).MUTANTS
        except ImportError:
            continue
        for mutant in mutants:
            if mutant.name in found:
                raise MutantError(f"there are two mutants named {mutant.name}")
            found[mutant.name] = mutant
    return found


@contextmanager
def applied(name: str) -> Iterator[str]:
    """Within the block the mutant's room is imported afresh, and changed; yields the backend to load.

    Afterwards the room as it was is back for everybody else, this suite above all: only what was
    loaded within the block is a mutant. A room that nobody had loaded stays changed.
    """
    before = set(sys.modules)
    known = catalogue()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or sorted(known)[:3]
        raise MutantError(
            f"there is no mutant {name!r} among {len(known)}; did you mean {' or '.join(near)}?"
        )
    mutant = known[name]
    room = room_of(mutant)
    originals = _taken_out(room)
    if room not in before:  # only the catalogue has loaded it
        originals.clear()
    finder = _MutatingFinder(mutant)
    sys.meta_path.insert(0, finder)
    try:
        yield mutant.backend
    finally:
        if room in originals:
            _taken_out(room)
            sys.modules.update(originals)
            # `import dnncanon.reference as reference` looks for the package's attribute.
            package, _, name = room.partition(".")
            setattr(sys.modules[package], name, originals[room])
            sys.meta_path.remove(finder)


def room_of(mutant: Mutant) -> str:
    """The package that is loaded afresh for a mutant, such as ``dnncanon.reference``."""
    return ".".join(mutant.module.split(".")[:2])


@contextmanager
def unloaded_afterwards(room: str) -> Iterator[None]:
    """What the block loads of a room is loaded no more after it; a room in use before stays."""
    in_use = room in sys.modules
    try:
        yield
    finally:
        if not in_use and _taken_out(room):
            package, _, name = room.partition(".")
            delattr(sys.modules[package], name)  # where `from dnncanon import gpu` would find it


def _taken_out(room: str) -> dict[str, ModuleType]:
    """The loaded modules of a room, which are then loaded no more."""
    names = [n for n in sys.modules if n == room or n.startswith(f"{room}.")]
    return {name: sys.modules.pop(name) for name in names}


class _MutatingFinder(MetaPathFinder):
    """Finds the mutant's module, with its source changed."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.mutant.module:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None:
            raise MutantError(f"mutant {self.mutant.name}: there is no module {fullname}")
        loader = _MutatingLoader(fullname, found.origin)
        loader.mutant = self.mutant
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


class _MutatingLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from its changed source, never from a compiled copy."""

    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        changed = mutated(self.mutant, self.get_data(self.path).decode())
        return compile(changed, self.path, "exec")


def check_places(mutants: Iterable[Mutant]) -> None:
    """Raises MutantError with a line for each mutant whose place is not in the source just once."""
    lost = []
    for mutant in mutants:
        found = importlib.util.find_spec(mutant.module)
        if found is None or found.origin is None:
            lost.append(f"mutant {mutant.name}: there is no module {mutant.module}")
            continue
        try:
            mutated(mutant, Path(found.origin).read_text("utf-8"))
        except MutantError as error:
            lost.append(str(error))
    if lost:
        raise MutantError("\n".join(lost))


def mutated(mutant: Mutant, source: str) -> str:
    """The source with the mutant's change. MutantError unless its place is there just once."""
    occurrences = source.count(mutant.old)
    if occurrences != 1:
        raise MutantError(
            f"mutant {mutant.name}: its text occurs {occurrences} times in {mutant.module}, not once; "
            f"has the source changed? It is {mutant.old!r}"
        )
    return source.replace(mutant.old, mutant.new)
