"""The container engine's client, and images built, pulled and pushed by it."""
