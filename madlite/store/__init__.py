"""The run folder: its names, opening and locking it, reading and copying out what is in it."""
