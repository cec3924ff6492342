"""Guards against: a camera that does not show the puck, pictures that disturb the physics, a puck off its speed, a
closed renderer that stays closed, and a machine without OpenGL that gets a traceback instead of an apt line.
"""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from phyai_ros.sim import opengl
from phyai_ros.sim.arm import JOINTS, PHYSICS_DT_S, POLICY_JOINTS
from phyai_ros.sim.expert import joints_for
from phyai_ros.sim.scene import Scene, Studio

REST = np.append(joints_for(0.14 + 0j), 0.0)


@pytest.fixture
def scene():
    with Scene() as scene:
        scene.reset(REST, puck_y_m=0.1)
        yield scene


def puck_column(image: np.ndarray) -> float:
    """Mean column of the green pixels."""
    red, green, blue = np.moveaxis(image.astype(int), -1, 0)
    columns = np.nonzero((green > 90) & (green > 2 * red) & (green > 1.5 * blue))[1]
    assert len(columns) > 0, "no green pixel in the picture"
    return float(columns.mean())


def test_model_has_the_joints_in_order():
    model = Scene().model
    assert tuple(model.joint(i).name for i in range(model.njnt)) == JOINTS
    assert tuple(model.actuator(i).name for i in range(model.nu)) == JOINTS
    assert POLICY_JOINTS == ("yaw", "shoulder", "elbow", "wrist_pitch")
    assert model.opt.timestep == PHYSICS_DT_S


def test_arm_holds_still_against_gravity(scene):
    for _ in range(250):
        scene.step()
    after = scene.snapshot()
    np.testing.assert_allclose(after.positions, REST, atol=1e-3)
    assert np.abs(after.velocities).max() < 1e-3 and not scene.contact


def test_puck_moves_at_its_speed_and_the_camera_sees_it(scene):
    before, column = scene.snapshot(), puck_column(scene.render(64, 64))
    for _ in range(250):
        scene.step()
    after = scene.snapshot()
    assert after.time_s == pytest.approx(1.0)
    np.testing.assert_allclose(after.puck_xy - before.puck_xy, [0, -0.08], atol=1e-9)
    assert column - puck_column(scene.render(64, 64)) > 4  # the camera looks back at the arm: its left is our right


@pytest.mark.parametrize(("height", "width", "camera"), [(64, 64, "front"), (224, 224, "front"), (120, 160, "gallery")])
def test_pictures_have_the_asked_size(scene, height, width, camera):
    image = scene.render(height, width, camera)
    assert image.shape == (height, width, 3) and image.dtype == np.uint8
    assert image.std() > 10


def test_a_picture_of_the_past_leaves_the_present_alone(scene):
    past = scene.snapshot()
    picture = scene.picture(past, 64, 64)
    scene.set_command(np.append(joints_for(0.2 + 0.05j), 0.0))
    for _ in range(50):
        scene.step()
    now = scene.snapshot()
    np.testing.assert_array_equal(scene.picture(past, 64, 64), picture)
    np.testing.assert_array_equal(scene.snapshot().positions, now.positions)
    assert (scene.render(64, 64) != picture).any()


def test_an_unknown_camera_is_refused_with_the_known_ones(scene):
    with pytest.raises(ValueError, match=r"'back'.*front, gallery"):
        scene.render(64, 64, "back")


def test_scene_renders_again_after_close(scene):
    first = scene.render(64, 64)
    scene.close()
    np.testing.assert_array_equal(scene.render(64, 64), first)


def test_a_machine_that_cannot_render_is_told_what_to_install(scene, monkeypatch):
    def fail(*args: object) -> None:
        raise ImportError("Cannot initialize a EGL device display")

    monkeypatch.setattr(mujoco, "Renderer", fail)
    with pytest.raises(ValueError, match="sudo apt install"):
        Studio(scene.model).render(scene.snapshot(), 64, 64)


@pytest.mark.parametrize(
    ("egl", "osmesa", "expected"),
    [(True, True, "egl"), (True, False, "egl"), (False, True, "osmesa"), (False, False, "egl")],
)
def test_egl_comes_first_then_osmesa(monkeypatch, egl, osmesa, expected):
    monkeypatch.setattr(opengl, "egl_device_answers", lambda: egl)
    monkeypatch.setattr(opengl, "_loads_any", lambda libraries: osmesa)
    environ: dict[str, str] = {}
    assert opengl.choose_backend(environ) == expected == environ["MUJOCO_GL"]
    assert environ["LP_NUM_THREADS"] == "1"


def test_the_users_choice_of_backend_stands():
    environ = {"MUJOCO_GL": "glfw", "LP_NUM_THREADS": "4"}
    assert opengl.choose_backend(environ) == "glfw"
    assert environ == {"MUJOCO_GL": "glfw", "LP_NUM_THREADS": "4"}
