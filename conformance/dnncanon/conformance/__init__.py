"""The conformance suite: draws cases, holds any backend to the reference, reports what it saw."""
