"""The executable standard of deep-learning primitives: spec, reference, GPU library, conformance suite, reports."""
