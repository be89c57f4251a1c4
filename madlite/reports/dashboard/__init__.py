"""The dashboard: pages over the index of a folder of runs, and what goes on there, for a browser on this machine.

It reads and never writes, but for the index; no run waits for it.
"""
