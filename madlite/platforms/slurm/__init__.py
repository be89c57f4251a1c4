"""Runs on the nodes of an allocation of Slurm or SPUR."""
