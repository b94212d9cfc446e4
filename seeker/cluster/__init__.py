"""Calls and bytes on a Flame 0.6 cluster: our client, and the embedded cluster of one machine."""
