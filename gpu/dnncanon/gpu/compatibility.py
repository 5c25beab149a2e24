"""What numba-cuda still asks of NumPy and NumPy no longer has; imported before numba.cuda is.

NumPy 2.5 took ``row_stack`` away, an alias of ``vstack``; numba-cuda 0.30 names it when it is imported.
"""

import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
