"""Content that means harm: what cards, workloads, their files and their logs can hold."""
