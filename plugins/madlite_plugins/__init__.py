"""The backends that come with madlite; each registers through the entry point group `madlite`, like any other."""
