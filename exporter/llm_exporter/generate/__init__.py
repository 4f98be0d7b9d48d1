"""Generate: dashboards, alert rules and reference documents from the declarations."""
