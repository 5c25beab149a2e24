"""The version of the installed package; a plain checkout, run through PYTHONPATH, has none."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dnncanon")
except PackageNotFoundError:
    __version__ = "0+checkout"
