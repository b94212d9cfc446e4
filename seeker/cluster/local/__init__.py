"""The embedded cluster: speaks flamepy 0.6.0's wire protocol on one machine, loopback only."""
