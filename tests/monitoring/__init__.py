"""Metrics, rules and dashboards, met by the real promtool and a real Prometheus."""
