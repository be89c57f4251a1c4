"""A log's lines → steps → steady window → verdict."""
