"""The weekly capacity review: questions to Prometheus, statistics, and the pages for readers."""
