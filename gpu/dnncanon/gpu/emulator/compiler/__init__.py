"""From a Python kernel to machine code for one CUDA thread."""
