"""Physics of the built-in scene, and pictures of it.

`Scene` advances the arm and the puck by 4 ms steps. A `Snapshot` holds all that a picture needs, so a `Studio` in
another thread (an OpenGL context belongs to the thread that made it) can render while the physics goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from phyai_ros.sim.arm import BELT_X_M, JOINTS, MJCF, PHYSICS_DT_S, PUCK_SPEED_M_S
from phyai_ros.sim.opengl import explain_failure

PUCK_HEIGHT_M = 0.02
CAMERAS = ("front", "gallery")


@dataclass(frozen=True)
class Snapshot:
    """The scene at one instant: joint vectors are [5] in the order of JOINTS, points are (x, y) in metres."""

    time_s: float
    positions: NDArray[np.float64]
    velocities: NDArray[np.float64]
    tool_xy: NDArray[np.float64]
    puck_xy: NDArray[np.float64]


class Scene:
    """Arm and puck in MuJoCo. `contact` stays true once the tool has touched the post, until `reset`."""

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(MJCF)
        self._data = mujoco.MjData(self.model)
        self._tip = self.model.site("tool_tip").id
        self._studio: Studio | None = None
        self.contact = False
        self.reset(np.zeros(len(JOINTS)), puck_y_m=0.0)

    def reset(self, joints: NDArray[np.floating], puck_y_m: float) -> None:
        """Put the arm at rest at `joints` [5], its servos commanded there, the puck at `puck_y_m`, and time at 0."""
        mujoco.mj_resetData(self.model, self._data)
        self._data.qpos[:] = joints
        self._data.ctrl[:] = joints
        self._place_puck(puck_y_m)
        self.contact = False
        mujoco.mj_forward(self.model, self._data)

    def set_command(self, joints: NDArray[np.floating]) -> None:
        """Position targets [5] of the servos, in rad, until the next call."""
        self._data.ctrl[:] = joints

    def step(self) -> None:
        """Advance physics and puck by PHYSICS_DT_S."""
        self._place_puck(self._data.mocap_pos[0, 1] + PUCK_SPEED_M_S * PHYSICS_DT_S)
        mujoco.mj_step(self.model, self._data)
        self.contact = self.contact or self._data.ncon > 0

    def snapshot(self) -> Snapshot:
        """Copy of the present instant."""
        data = self._data
        mujoco.mj_kinematics(self.model, data)  # a step leaves the tool where it was before the step
        return Snapshot(
            time_s=data.time,
            positions=data.qpos.copy(),
            velocities=data.qvel.copy(),
            tool_xy=data.site_xpos[self._tip, :2].copy(),
            puck_xy=data.mocap_pos[0, :2].copy(),
        )

    def render(self, height: int, width: int, camera: str = "front") -> NDArray[np.uint8]:
        """RGB picture [h, w, 3] of the present instant. Call it from one thread only."""
        return self.picture(self.snapshot(), height, width, camera)

    def picture(self, snapshot: Snapshot, height: int, width: int, camera: str = "front") -> NDArray[np.uint8]:
        """RGB picture [h, w, 3] of an instant that may have passed. Call it from one thread only."""
        if self._studio is None:
            self._studio = Studio(self.model)
        return self._studio.render(snapshot, height, width, camera)

    def close(self) -> None:
        """Free the renderer."""
        if self._studio is not None:
            self._studio.close()
            self._studio = None

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _place_puck(self, y_m: float) -> None:
        self._data.mocap_pos[0] = (BELT_X_M, y_m, PUCK_HEIGHT_M)


class Studio:
    """Renders snapshots of one model; belongs to the thread that first renders with it."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        self._data = mujoco.MjData(model)  # its own copy, so that posing for a picture never touches the physics
        self._renderers: dict[tuple[int, int], mujoco.Renderer] = {}

    def render(self, snapshot: Snapshot, height: int, width: int, camera: str = "front") -> NDArray[np.uint8]:
        """RGB picture [h, w, 3]. Raises ValueError for an unknown camera, and where OpenGL does not work."""
        if camera not in CAMERAS:
            raise ValueError(f"camera: {camera!r} is not in the scene; choose one of {', '.join(CAMERAS)}.")
        self._data.qpos[:] = snapshot.positions
        self._data.mocap_pos[0, :2] = snapshot.puck_xy
        self._data.mocap_pos[0, 2] = PUCK_HEIGHT_M
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        renderer = self._renderer(height, width)
        renderer.update_scene(self._data, camera=camera)
        self._set_flags(renderer, pretty=camera == "gallery")
        return renderer.render()

    def close(self) -> None:
        """Free every OpenGL context."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    def _renderer(self, height: int, width: int) -> mujoco.Renderer:
        if (height, width) not in self._renderers:
            try:
                self._renderers[height, width] = mujoco.Renderer(self._model, height, width)
            except (ImportError, RuntimeError, AttributeError, mujoco.FatalError) as error:
                raise ValueError(explain_failure(error)) from error
        return self._renderers[height, width]

    @staticmethod
    def _set_flags(renderer: mujoco.Renderer, pretty: bool) -> None:
        """The policy's camera skips what only costs time."""
        flags = renderer.scene.flags
        flags[mujoco.mjtRndFlag.mjRND_SHADOW] = pretty
        flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = pretty
        flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
