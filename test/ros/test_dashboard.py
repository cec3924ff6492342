"""Guards against: a page that needs the network or can be written to, one that shows nothing or nothing true, numbers
without provenance, subscriptions that stay when nobody looks, requests under a foreign name."""

from __future__ import annotations

import http.client
import json
import re
import threading
from array import array
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import rclpy
from sensor_msgs.msg import Image

from package.source_tree import ROOT
from phyai_ros.dashboard.feed import Feed, Seen
from phyai_ros.dashboard.page import load_page
from phyai_ros.dashboard.pictures import to_thumbnail
from phyai_ros.dashboard.server import IDLE_AFTER_S, DashboardServer
from phyai_ros.dashboard.snapshot import make_snapshot
from phyai_ros.msg import ControlTiming, PolicyStatus
from ros.browser import CHROMIUM, browse
from ros.policy_rig import PolicyRig

SCREENSHOTS = ROOT / "out" / "screenshots"


@pytest.fixture(scope="module")
def served(ros_environment):
    """A running policy node, and a dashboard that has looked at it for a few chunks."""
    with PolicyRig(**{"inference.inject_delay_s": 0.05}) as rig:
        rig.start().wait_for_state("running")
        node = rclpy.create_node("viewer", context=rig.context)
        clock = SimpleNamespace(now_s=0.0)
        server = DashboardServer(Feed(node, "/policy"), now_s=lambda: clock.now_s)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        rig.wait(lambda: read_state(server)["point_count"] > 3, "chunks on the dashboard")
        yield SimpleNamespace(server=server, node=node, clock=clock, rig=rig)
        server.shutdown()
        thread.join()
        server.close()
        node.destroy_node()


def ask(server: DashboardServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def read_state(server: DashboardServer, query: str = "") -> dict:
    return json.loads(ask(server, f"/state{query}")[2])


def test_the_page_is_whole_in_itself_and_may_run_nothing_else():
    document, policy = load_page()
    text = document.decode()
    assert not re.findall(r"""(?:src|href)\s*=|https?://|@import|url\(""", text.replace("image.src =", ""))
    assert "/* STYLE */" not in text and "/* SCRIPT */" not in text
    assert "default-src 'none'" in policy and "unsafe" not in policy and policy.count("sha256-") == 2


def test_what_the_node_says_is_in_the_state(served):
    state = read_state(served.server)
    assert (state["policy"]["joints"], state["policy"]["cameras"]) == (["shoulder", "elbow"], ["front"])
    assert (state["status"]["state"], state["status"]["bound"]) == ("running", "environment")
    assert "Environment-bound" in state["words"][0]
    stages = {stage["name"]: stage for stage in state["stages"]}
    assert 0.05 <= stages["other"]["p50"] < 0.2 and stages["other"]["how"] == "measured"
    assert (stages["vision"]["last"], stages["vision"]["how"]) == (None, "unknown")
    assert [one["name"] for one in state["status"]["inputs"]] == ["camera/front/image_raw", "joint_states"]
    assert len(state["chunk"]["rows"][0]) == 2 and state["events"][-1]["state"]


def test_only_news_is_sent_again(served):
    first = read_state(served.server)
    served.rig.wait_for_news("command", 3)
    second = read_state(served.server, f"?commands={first['command_count']}&points={first['point_count']}")
    assert 0 < len(second["commands"]) == second["command_count"] - first["command_count"]
    assert len(second["points"]) == second["point_count"] - first["point_count"]


def test_pictures_are_small_pngs(served):
    served.rig.wait(lambda: ask(served.server, "/camera?key=front")[0] == 200, "picture")
    status, kind, body = ask(served.server, "/camera?key=front")
    assert (status, kind) == (200, "image/png")
    assert cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR).shape == (8, 8, 3)
    assert ask(served.server, "/camera?key=wrist")[0] == 404


def test_it_can_only_be_read_and_only_under_its_own_name(served):
    assert ask(served.server, "/state", "POST")[0] == 501
    assert ask(served.server, "/etc/passwd")[0] == 404
    assert ask(served.server, "/state", Host="evil.example:80")[0] == 403


def test_nobody_listens_once_nobody_looks(served):
    read_state(served.server)
    before = served.node.count_subscribers("/policy/timing")
    served.clock.now_s += IDLE_AFTER_S + 1.0
    served.server.service_actions()
    served.rig.wait(lambda: served.node.count_subscribers("/policy/timing") == before - 1, "end of the subscription")
    read_state(served.server)
    served.rig.wait(lambda: read_state(served.server)["point_count"] > 0, "a new start")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page is not opened in a browser")
@pytest.mark.parametrize(("name", "width", "height"), [("wide", 1280, 800), ("phone", 390, 844)])
def test_a_browser_shows_it(served, tmp_path, name, width, height):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    picture = SCREENSHOTS / f"dashboard_{name}.png"
    browse(served.server.url, tmp_path, width, height, f"--screenshot={picture}")
    assert cv2.imread(str(picture)).shape == (height, width, 3)
    if name == "wide":
        shown = browse(served.server.url, tmp_path, width, height, "--dump-dom")
        for text in (
            'class="state running">running<',
            "environment-bound",
            "robot follows",
            "joint_states",
            "shoulder",
        ):
            assert text in shown, text


def test_a_node_that_is_not_there_is_said_and_nothing_made_up():
    state = make_snapshot(Seen(), "/policy")
    assert state["silent_s"] is None and state["status"] is None and state["stages"] == []
    json.dumps(state, allow_nan=False)


def test_unknown_numbers_are_null_and_the_file_is_valid_json():
    seen = Seen(status=PolicyStatus(x_p50=float("nan"), l_env=0.32, feasible=False))
    seen.timings.append(ControlTiming(l_denoise=float("nan"), l_effect=float("nan"), l_effect_how=0, x=float("inf")))
    state = json.loads(json.dumps(make_snapshot(seen, "/policy"), allow_nan=False))
    assert state["status"]["x_p50"] is None and "do not fit" in state["words"][-1]
    assert {s["name"]: s["last"] for s in state["stages"]}["effect"] is None


def test_large_pictures_are_thinned_and_keep_their_colours():
    pixels = np.zeros((480, 640, 3), np.uint8)
    pixels[:, 320:] = (250, 100, 0)
    message = Image(height=480, width=640, encoding="bgr8", step=1920, data=array("B", pixels.tobytes()))
    shown = cv2.imdecode(np.frombuffer(to_thumbnail(message), np.uint8), cv2.IMREAD_COLOR)  # BGR
    assert max(shown.shape) <= 192 and shown[10, -1].tolist() == [250, 100, 0]
