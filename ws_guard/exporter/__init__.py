"""The exporter: reads a board and tells Prometheus, Kubernetes and people. Never torch or CUDA."""
