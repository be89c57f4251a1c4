"""Runs outside of their folder and time: packed for somebody else, taken in, read again, and removed by age or size."""
