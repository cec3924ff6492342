"""phyai_core: types, clock, real-time chunking, executor, timing and the embedded runtime. Knows no ROS."""
