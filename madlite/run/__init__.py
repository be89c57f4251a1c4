"""The flow of a run: tags → requests → plans → runs → rows. Doors pass their callbacks in."""
