"""Reports of control time, from recorded timings."""
