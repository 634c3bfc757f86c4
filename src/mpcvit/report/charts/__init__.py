"""The report's charts: each module turns collected into charts, and draws nothing itself."""
