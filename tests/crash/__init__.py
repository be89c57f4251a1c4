"""Commands that end at each kind of write to their working folder: killed there, amid it, or without space."""
