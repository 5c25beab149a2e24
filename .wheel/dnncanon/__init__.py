"""The executable standard of deep-learning primitives, from specification to conformance report."""
