"""Metrics, a file for each way of counting; conf/metrics names them."""
