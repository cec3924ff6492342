"""phyai_ros: everything that knows ROS 2."""

from pkgutil import extend_path

# A source checkout and the generated phyai_ros.msg of an installation form one package.
__path__ = extend_path(__path__, __name__)
