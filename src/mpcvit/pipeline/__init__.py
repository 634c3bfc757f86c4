"""From a configuration to a report: every step once, kept, and gone on with where it was left."""
