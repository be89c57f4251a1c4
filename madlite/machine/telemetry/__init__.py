"""What the GPUs of a run do while it runs: sources that are read, samples of them, and what they come to."""
