"""Many runs on one machine: GPUs, attempts, resumption, and what earlier commands left behind."""
