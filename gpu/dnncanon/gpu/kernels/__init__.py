"""Numba-CUDA kernels, one module for each algorithm; importing one imports Numba."""
