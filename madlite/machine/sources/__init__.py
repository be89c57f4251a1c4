"""What each tool and driver says: facts for detection and samples for telemetry, one module per source."""
