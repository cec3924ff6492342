"""The command line `phyai-ros`. Command modules import what is heavy, or needs ROS, only when they run."""
