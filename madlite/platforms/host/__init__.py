"""The runtime `host`: processes of this machine."""
