"""The runtime `kubernetes`: a plan runs as an Indexed Job, one pod on each node."""
