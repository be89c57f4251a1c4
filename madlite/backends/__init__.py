"""What backends are made of, and how plugins are loaded."""
