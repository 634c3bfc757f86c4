"""The report's charts: each module turns findings into charts, and draws nothing itself."""
