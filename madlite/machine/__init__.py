"""What this machine offers: vendor, architecture, product, count, memory and versions of its GPUs.

Sources are the files under /sys, /dev and /proc, and the vendors' tools where they exist; `detect.detect_machine` puts
them together into one `madlite.model.Machine`.
"""
