"""From a configuration to a report: each step runs once, is stored, and resumes after a stop."""
