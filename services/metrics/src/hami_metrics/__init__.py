"""hami-metrics: usage history, Prometheus metrics, web pages and questions."""
