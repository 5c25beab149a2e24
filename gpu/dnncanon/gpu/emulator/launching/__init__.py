"""Launches: arguments and memory, running, and what is reported afterwards."""
