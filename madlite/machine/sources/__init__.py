"""What each tool and driver reports: facts for detection and samples for telemetry, one module per source."""
