"""The alert rules and the metrics of the hooks for Prometheus and Grafana."""
