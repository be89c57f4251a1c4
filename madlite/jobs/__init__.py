"""Clusters: plans become jobs of a scheduler, and what came of the jobs becomes rows; scheduling is the cluster's."""
