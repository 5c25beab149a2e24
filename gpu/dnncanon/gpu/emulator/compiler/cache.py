"""The cache of compiled kernels on disk: off, unless DNNCANON_CACHE_DIR names a directory for it.

One file for each thing made, named by its fingerprint; nothing in it ever becomes wrong, it only ceases
to be asked for. Whatever goes wrong with a file, what it held is made again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from dnncanon.gpu.emulator.compiler.fingerprint import Unfamiliar

__all__ = ["MOST_BYTES", "UNUSED_SECONDS", "VARIABLE", "Store", "remembered"]

VARIABLE = "DNNCANON_CACHE_DIR"
"""Empty, "off" or not set: no cache."""

MOST_BYTES = 1 << 30
UNUSED_SECONDS = 30 * 24 * 3600.0

_DIGEST_BYTES = hashlib.sha256().digest_size
_SUFFIX, _UNFINISHED = ".dnncanon", ".dnncanon-unfinished"
"""Of our files: there may be others in the directory, and they are not ours to delete."""

Made = TypeVar("Made")


def remembered(
    name: Callable[[], str],
    make: Callable[[], Made],
    valid: Callable[[Made], bool] = lambda made: True,
) -> Made:
    """What `make` made when this was last called with the same `name`, in whatever process; else made now.

    Not kept: what has no name, because naming it raises Unfamiliar, and what is not `valid`.
    """
    store = _store(os.environ.get(VARIABLE, ""))
    if store is None:
        return make()
    try:
        key = name()
    except Unfamiliar:
        return make()
    found: Made | None = store.get(key)
    if found is not None and valid(found):
        return found
    made = make()
    if valid(made):
        store.put(key, made)
    return made


@cache
def _store(choice: str) -> Store | None:
    if choice in ("", "off"):
        return None
    directory = Path(choice).expanduser().absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        warnings.warn(f"{VARIABLE}={choice}: no kernels are cached: {error}", stacklevel=2)
        return None
    # What lies there will be executed.
    if found.st_uid != os.geteuid() or found.st_mode & 0o002:
        warnings.warn(
            f"{VARIABLE}={choice}: no kernels are cached, because others may write there; "
            "name a directory of your own",
            stacklevel=2,
        )
        return None
    return Store(directory)


class Store:
    """Picklable objects in a directory. Processes may share it: files appear whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._tidied = False

    def get(self, key: str) -> Any:
        """What was put there under this key; None if nothing was, or it is damaged."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            os.utime(path)  # used now
        except OSError:
            return None
        payload = data[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != data[:_DIGEST_BYTES]:
            return None
        return pickle.loads(payload)

    def put(self, key: str, made: Any) -> None:
        """Keep an object, if the disk has it."""
        payload = pickle.dumps(made)
        try:
            self._tidy()
            with tempfile.NamedTemporaryFile(
                dir=self.directory, suffix=_UNFINISHED, delete=False
            ) as file:
                try:
                    file.write(hashlib.sha256(payload).digest() + payload)
                    file.close()
                    os.replace(file.name, self._path(key))
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"

    def _tidy(self) -> None:
        """Once per process: delete what nobody has used for long, and of the rest the longest unused
        until three quarters of the space are enough."""
        if self._tidied:
            return
        self._tidied = True
        files = sorted(_files(self.directory), reverse=True)
        oldest, kept = time.time() - UNUSED_SECONDS, 0
        full = sum(size for _, size, _ in files) > MOST_BYTES
        for used, size, path in files:
            kept += size
            if used < oldest or (full and kept > MOST_BYTES * 3 // 4):
                path.unlink(missing_ok=True)


def _files(directory: Path) -> list[tuple[float, int, Path]]:
    """When last used, bytes, path: of all our files."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith((_SUFFIX, _UNFINISHED)):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime, status.st_size, Path(entry.path)))
    return found
