"""Chaos: runs of the whole command that are attacked at a random moment, and a judge who asks what must hold after it.

`make chaos` plays 200 rounds; a round is all in its seed, so SEED=… RUNS=1 plays it again.
"""
