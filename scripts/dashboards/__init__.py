"""The Grafana dashboards of the chart: panels and queries in Python, JSON below daemonset/chart/dashboards."""
