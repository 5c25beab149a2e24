"""Inline PTX: the table of instructions, and how each is executed."""
