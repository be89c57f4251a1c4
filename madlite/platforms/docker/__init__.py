"""The runtime `docker`: a container of an engine on this machine."""
