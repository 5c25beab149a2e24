"""The run time: what a GPU does, as native functions, and the structures they work on."""
