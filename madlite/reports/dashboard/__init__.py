"""The dashboard: pages, an API and live events over the index of a folder of runs, for a browser on this machine.

It reads and never writes, but for the index; no run waits for it.
"""
