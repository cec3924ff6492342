"""Bag replay: what the policy node would have done with recorded messages. Needs no ROS installation and no robot."""
