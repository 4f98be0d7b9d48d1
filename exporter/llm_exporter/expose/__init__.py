"""Show: the page for Prometheus, pages and JSON for people, and the HTTP server."""
