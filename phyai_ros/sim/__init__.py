"""The built-in task: an arm, a post, a moving puck, an expert, a policy trained on it. Nothing in here knows ROS.

The OpenGL backend is chosen here because MuJoCo reads the choice once, when it is first imported.
"""

from phyai_ros.sim.opengl import choose_backend

choose_backend()
