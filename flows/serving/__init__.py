"""Server, worker and deployments on one machine: what `seeker serve` and `make serve` start, watch and stop."""
