"""``dnncanon doctor``: what this machine can run, and what to install for the rest."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

from dnncanon.conformance.backends import BackendError, installed
from dnncanon.conformance.pool import Pool
from dnncanon.conformance.run import processor
from dnncanon.spec import __version__

_REMEDIES = {
    "gpu": "pip install 'dnncanon[cuda13]' (or cuda12); without a GPU its kernels run on an emulator",
    "torch": "pip install 'dnncanon[torch]'",
}
_PACKAGES = ("numpy", "ml_dtypes", "hypothesis", "numba", "numba-cuda", "torch", "pytest")


def examine() -> int:
    """Print the findings; 0 if at least one backend can be used, 2 otherwise."""
    print(f"dnncanon {__version__}, Python {platform.python_version()} at {sys.prefix}")
    print(f"{platform.platform()}, {processor()}")
    print(
        f"NVIDIA driver: {'found' if shutil.which('nvidia-smi') else 'not found (no nvidia-smi)'}"
    )
    print("\nPackages")
    for package in _PACKAGES:
        print(f"  {package:<12} {_version_or_absent(package)}")
    print("\nEnvironment")
    variables = {name: v for name, v in sorted(os.environ.items()) if name.startswith("DNNCANON_")}
    for name, value in variables.items():
        print(f"  {name}={value}")
    if not variables:
        print("  no variable DNNCANON_…")
    print("\nBackends")
    usable = [_examine_backend(name) for name in installed()]
    return 0 if any(usable) else 2


def _version_or_absent(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _examine_backend(name: str) -> bool:
    """Load the backend in a process of its own, as a run does, and say what it offers."""
    try:
        with Pool(name) as pool:
            found = pool.introduction
    except BackendError as error:
        print(f"  {name:<12} no: {error}")
        if name in _REMEDIES:
            print(f"  {'':<12} remedy: {_REMEDIES[name]}")
        return False
    device = found["description"].get("device", "device unknown")
    print(f"  {name:<12} yes: {device}, {len(found['offered'])} primitives")
    return True
