"""A plan → a process: images, runtimes, the run's folder and log, and what ends it."""
