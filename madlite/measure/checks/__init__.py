"""The checks of a run's number: each is a small function of a CheckInput.

`table` lists the outcomes of each check and their consequences (docs/verdict.md has the same rows);
`verdict.run_all_checks` runs all of them.
"""
