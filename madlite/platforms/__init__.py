"""What executes plans: a container engine, or this machine itself."""
