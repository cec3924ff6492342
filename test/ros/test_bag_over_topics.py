"""Guards against: a node under simulated time whose decisions depend on how fast, or how often, a bag is played."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")

from rclpy.parameter import Parameter

import phyai_adapters
from phyai_ros.msg import ActionChunk
from phyai_ros.policy_node import PolicyNode
from replay.made_bags import MadeBag
from replay.replay_rig import PARAMETERS, KnowingPolicy
from ros.bag_player import BagPlayer

DT_NS = 40_000_000
SECONDS = 1.2


class LiveRig:
    """A policy node under simulated time in front of a player; `chunks` are those that it adopted."""

    def __init__(self, graph, folder) -> None:
        KnowingPolicy.late_s, KnowingPolicy.off, KnowingPolicy.fails_at = 0.0, 0.0, -1
        self._graph = graph
        values = {**PARAMETERS, "use_sim_time": True, "inputs.max_age_s": 0.2}
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        self.node = graph.add(PolicyNode(context=graph.context, parameter_overrides=overrides))
        self.chunks: list[ActionChunk] = []
        listener = graph.node("listener")
        listener.create_subscription(ActionChunk, "policy/chunk", self.chunks.append, 100)
        self.player = BagPlayer(graph, MadeBag(seconds=SECONDS).write(folder / "bag"), self._settled)
        self._ticks_before = 0  # of earlier rounds

    def start(self) -> None:
        """Configure, let the clock begin, activate: tick 0 is due when the bag starts."""
        assert self.node.trigger_configure().name == "SUCCESS"
        clock = self.node.get_clock()

        def begun() -> bool:
            self.player.set_clock(self.player.start_ns)
            return clock.now().nanoseconds == self.player.start_ns

        self._graph.spin_until(begun, what="the clock")
        self._graph.spin_until(lambda: len(self.node.get_publishers_info_by_topic("/joint_states")) == 1)
        assert self.node.trigger_activate().name == "SUCCESS"

    def start_again(self) -> None:
        """Before the bag is played once more: ticks go on counting."""
        self._ticks_before = self._ticks()

    def stop(self) -> None:
        self.node.stop()
        del self.node  # so that the graph can let it go

    def _settled(self, sent: int, now_ns: int) -> bool:
        """All messages are there, the ticks up to the clock have run, and no inference is under way."""
        session = self.node._session
        if sum(session._inputs.received.values()) < sent:
            return False
        if not now_ns:
            return True
        executor = session._executor
        idle = not executor.busy
        on_time = self.node.get_clock().now().nanoseconds == now_ns
        due = self._ticks_before + (now_ns - self.player.start_ns) // DT_NS
        return idle and on_time and session._pipeline.record is not None and self._ticks() > due

    def _ticks(self) -> int:
        counters = self.node._session._executor.counters
        return counters.ticks + counters.missed_ticks


@pytest.fixture
def rig(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "phyai_ros.session.BRAKING_TIMEOUT_S", 0.1
    )  # at the end the clock stands: nothing comes to rest
    phyai_adapters.ADAPTERS["knowing"] = "replay.replay_rig:KnowingPolicy"
    rig = LiveRig(graph, tmp_path)
    yield rig
    rig.stop()
    del phyai_adapters.ADAPTERS["knowing"]


def indices(chunks) -> list[tuple[int, ...]]:
    """What was decided: launch, adoption and entry of each chunk, counted from the first launch."""
    first = chunks[0].base_tick
    return [(chunk.base_tick - first, chunk.adopt_tick - first, chunk.entry_row) for chunk in chunks]


EXPECTED = [(0, 1, 0), *((6 * n + 1, 6 * n + 2, 1) for n in range(1, 4))]


@pytest.mark.parametrize(("rate", "pause_s"), [(0.2, 0.0), (5.0, 0.0), (2.0, 0.6)])
def test_rates_and_pauses_change_nothing(rig, rate, pause_s):
    rig.start()
    rig.player.play(rate, pause_at_s=0.6, pause_s=pause_s)
    assert indices(rig.chunks)[:4] == EXPECTED
    assert {chunk.epoch for chunk in rig.chunks} == {rig.chunks[0].epoch}


def test_a_bag_that_starts_again_is_a_new_beginning(rig):
    """The clock goes back: nothing of the first round is executed in the second, which is decided as the first was."""
    rig.start()
    rig.player.play(5.0)
    first = list(rig.chunks)
    rig.start_again()
    rig.player.play(5.0)
    second = rig.chunks[len(first) :]
    assert indices(first)[:3] == indices(second)[:3] == EXPECTED[:3]
    assert min(chunk.epoch for chunk in second) > max(chunk.epoch for chunk in first)
