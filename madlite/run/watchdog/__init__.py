"""What distinguishes a hung run from a slow one, and what it hangs in."""
