"""What speaks for and against a run's number: each witness is a small function of what is known of the run.

`known` is what they are asked about, `table` what each can say and what follows from it (docs/verdict.md has the same
rows), `collect` asks all of them.
"""
