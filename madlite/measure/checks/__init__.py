"""The checks of a run's number: each is a small function of a CheckInput.

`table` lists what each check can come to and what follows from it (docs/verdict.md has the same rows); `collect` runs
all of them.
"""
