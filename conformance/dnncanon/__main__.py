"""``python -m dnncanon``: the command line."""

import sys

from dnncanon.conformance.cli import main

if __name__ == "__main__":
    sys.exit(main())
