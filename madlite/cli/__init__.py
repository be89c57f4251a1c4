"""The doors: one module per command, nothing but options and printing."""
