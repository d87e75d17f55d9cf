"""Between detok and the engines as they are. A module is imported by its name, and needs no engine to be imported."""
