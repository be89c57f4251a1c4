"""The checks of a run's number: each is a small function of a CheckInput (docs/verdict.md).

`verdict.CHECKS` names all of them.
"""
