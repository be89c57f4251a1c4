"""What was recorded, read back: comparison, reports, reference numbers."""
