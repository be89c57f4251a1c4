"""The dashboard: pages, an API and live events over the index of a folder of runs, for a browser on this machine.

It reads and never writes, but for the index; no run waits for it.  `serve` is the server, `make_app` the application.
"""

from madlite.reports.dashboard.server import make_app, serve

__all__ = ["make_app", "serve"]
