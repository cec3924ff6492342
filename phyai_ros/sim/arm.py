"""The built-in arm and its world: dimensions, and the MJCF made from them. Metres, radians, seconds, kilograms.

A five-joint arm stands at the origin, x forward, y left. A post stands in its way; behind the post a puck rides on a
belt from left to right. All shapes are primitives: a software renderer draws hundreds of images per second.
"""

from __future__ import annotations

JOINTS = ("yaw", "shoulder", "elbow", "wrist_pitch", "tool_roll")
POLICY_JOINTS = JOINTS[:4]  # the policy leaves tool_roll alone

PHYSICS_DT_S = 0.004
CONTROL_DT_S = 0.04
STEPS_PER_TICK = 10

SHOULDER_HEIGHT_M = 0.14
UPPER_ARM_M = 0.26
FOREARM_M = 0.26
WRIST_M = 0.05
TOOL_M = 0.09
TOOL_RADIUS_M = 0.012

POST_X_M = 0.33
POST_RADIUS_M = 0.022
BELT_X_M = 0.43
PUCK_SPEED_M_S = -0.08  # along y

MJCF = f"""
<mujoco model="phyai_arm">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{PHYSICS_DT_S}" integrator="implicitfast"/>
  <visual>
    <global offwidth="1280" offheight="960"/>
    <quality shadowsize="2048" offsamples="4"/>
    <headlight ambient="0.5 0.5 0.5" diffuse="0.4 0.4 0.4" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.93 0.95 0.98" rgb2="0.62 0.70 0.80"
      width="64" height="384"/>
    <material name="table" rgba="0.80 0.81 0.84 1"/>
    <material name="belt" rgba="0.27 0.29 0.33 1"/>
    <material name="rail" rgba="0.55 0.57 0.62 1"/>
    <material name="post" rgba="0.13 0.27 0.80 1"/>
    <material name="puck" rgba="0.12 0.72 0.28 1"/>
    <material name="dark" rgba="0.20 0.21 0.25 1"/>
    <material name="shell" rgba="0.96 0.58 0.14 1" specular="0.3" shininess="0.4"/>
    <material name="tool" rgba="0.84 0.12 0.12 1"/>
  </asset>
  <default>
    <joint damping="1" armature="0.02"/>
    <geom contype="0" conaffinity="0"/>
    <default class="touching">
      <geom contype="1" conaffinity="1"/>
    </default>
  </default>
  <worldbody>
    <light name="sun" pos="0.7 -0.9 1.8" dir="-0.25 0.5 -1" directional="true"
      diffuse="0.35 0.35 0.35" specular="0.1 0.1 0.1"/>
    <camera name="front" pos="1.0 0 0.52" xyaxes="0 1 0 -0.62 0 0.78" fovy="34"/>
    <camera name="gallery" mode="targetbody" target="focus" pos="0.86 -0.80 0.62" fovy="36"/>
    <body name="focus" pos="0.26 0 0.12"/>
    <geom name="table" type="box" size="0.45 0.45 0.01" pos="0.25 0 -0.01" material="table"/>
    <geom name="belt" type="box" size="0.035 0.45 0.001" pos="{BELT_X_M} 0 0.0005" material="belt"/>
    <geom name="post" class="touching" type="cylinder" size="{POST_RADIUS_M} 0.08" pos="{POST_X_M} 0 0.08"
      material="post"/>
    <body name="puck" mocap="true" pos="{BELT_X_M} 0 0.02">
      <geom type="cylinder" size="0.022 0.02" material="puck"/>
    </body>
    <body name="base">
      <geom type="cylinder" size="0.06 0.05" pos="0 0 0.05" material="dark"/>
      <body name="turret" pos="0 0 {SHOULDER_HEIGHT_M - 0.04}" gravcomp="1">
        <joint name="yaw" axis="0 0 1" range="-2.6 2.6"/>
        <geom type="cylinder" size="0.045 0.03" pos="0 0 0.02" mass="0.5" material="shell"/>
        <body name="upper_arm" pos="0 0 0.04" gravcomp="1">
          <joint name="shoulder" axis="0 1 0" range="-2 2"/>
          <geom type="capsule" fromto="0 0 0 0 0 {UPPER_ARM_M}" size="0.026" mass="0.5" material="shell"/>
          <body name="forearm" pos="0 0 {UPPER_ARM_M}" gravcomp="1">
            <joint name="elbow" axis="0 1 0" range="-0.2 2.9"/>
            <geom type="capsule" fromto="0 0 0 0 0 {FOREARM_M}" size="0.022" mass="0.4" material="shell"/>
            <body name="wrist" pos="0 0 {FOREARM_M}" gravcomp="1">
              <joint name="wrist_pitch" axis="0 1 0" range="-2.6 2.6"/>
              <geom type="capsule" fromto="0 0 0 0 0 {WRIST_M}" size="0.016" mass="0.1" material="dark"/>
              <body name="tool" pos="0 0 {WRIST_M}" gravcomp="1">
                <joint name="tool_roll" axis="0 0 1" range="-3 3"/>
                <geom class="touching" type="capsule" fromto="0 0 0.01 0 0 {TOOL_M - 0.01}" size="{TOOL_RADIUS_M}"
                  mass="0.05" material="tool"/>
                <site name="tool_tip" pos="0 0 {TOOL_M}" rgba="0 0 0 0"/>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="yaw" joint="yaw" kp="150" kv="8"/>
    <position name="shoulder" joint="shoulder" kp="150" kv="8"/>
    <position name="elbow" joint="elbow" kp="120" kv="6"/>
    <position name="wrist_pitch" joint="wrist_pitch" kp="30" kv="1.5"/>
    <position name="tool_roll" joint="tool_roll" kp="10" kv="0.5"/>
  </actuator>
</mujoco>
"""
