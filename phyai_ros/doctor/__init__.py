"""Preflight: what keeps a policy from running on this machine and this ROS graph, with the fix in words."""
