#!/bin/sh
# Prints the interpreter to make the virtual environment with, or says on stderr what to install.
# With ROS 2 sourced it is the interpreter that imports rclpy, else Python 3.12 or 3.11; one that has its
# headers and venv comes first. Commands that exist but do not run (version-manager shims) are passed over.
# PYTHON=... names one.

version_fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'
is_complete='import ensurepip, os, sysconfig, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'

if [ -n "${ROS_DISTRO:-}" ] && [ -n "${AMENT_PREFIX_PATH:-}" ]; then
  version_fits='import sys, rclpy; sys.exit(sys.version_info < (3, 10))'
  set -- python3
else
  set -- python3.12 python3.11 python3 python "$HOME"/.pyenv/versions/3.1[12].*/bin/python3
fi

print_first() { # checks, candidates...
  checks=$1
  shift
  for candidate; do
    if "$candidate" -c "$checks" >/dev/null 2>&1; then
      "$candidate" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))'
      return 0
    fi
  done
  return 1
}

if [ -n "${PYTHON:-}" ]; then
  print_first "$version_fits" "$PYTHON" && exit 0
  echo "PYTHON=$PYTHON does not run or does not fit: Python 3.11 or 3.12 (with ROS 2 sourced, the one of ROS)." >&2
  exit 1
fi
print_first "$version_fits
$is_complete" "$@" && exit 0
print_first "$version_fits" "$@" && exit 0

if [ -n "${ROS_DISTRO:-}" ] && [ -n "${AMENT_PREFIX_PATH:-}" ]; then
  echo "ROS 2 $ROS_DISTRO is sourced, but python3 cannot import rclpy: sudo apt install ros-$ROS_DISTRO-rclpy" >&2
  exit 1
fi
for version in 3.12 3.11; do
  if apt-cache show python$version >/dev/null 2>&1; then
    echo "No Python 3.11 or 3.12 found. One line installs all that is needed:" >&2
    echo "  sudo apt install python$version python$version-venv python$version-dev build-essential libegl1 libgl1" >&2
    exit 1
  fi
done
echo "No Python 3.11 or 3.12 found, and apt offers none. Install one (for example: uv python install 3.12)" >&2
echo "and name it: make setup PYTHON=/path/to/python3.12" >&2
exit 1
