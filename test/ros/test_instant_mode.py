"""Guards against: policies of one row that wait a tick for what takes a millisecond, and instant inference where it
would hold up the control tick."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from core.executor_rig import DT_S, OBS, make_chunk, make_spec
from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.types import Action
from phyai_ros.assembly import LoadedPolicy, check_latency
from phyai_ros.parameters import ParameterError, build_settings
from phyai_ros.spec_checks import check_against_spec


def configure(horizon: int, **changes):
    values = {"rtc.mode": "instant", **{name.replace("__", "."): value for name, value in changes.items()}}
    return check_against_spec(build_settings(values), make_spec(horizon))


def test_every_tick_executes_what_was_inferred_in_it():
    config = ExecutorConfig(mode="instant", execution_horizon=1, instant=True)
    executor = RtcExecutor(make_spec(1), config, lambda request: make_chunk(request, 1), now_ns=lambda: 0)
    commands = [executor.tick(k, 0, OBS) for k in range(4)]
    assert [(c.action, c.row[1], c.adoption.delay_counted) for c in commands] == [
        (Action.RUN, float(k), 0) for k in range(4)
    ]
    assert executor.degradation is None and not executor.wait_for_request(0.0)


def test_a_policy_of_one_row_has_to_be_run_so():
    assert configure(1).rtc.execution_horizon == 1 and configure(8, rtc__execution_horizon=8).rtc.mode == "instant"
    with pytest.raises(ParameterError, match="instant with the policy rig, which plans one row at a time"):
        configure(1, rtc__mode="none")
    with pytest.raises(ParameterError, match=r"thread with rtc\.mode instant"):
        configure(1, inference__placement="process")


@pytest.mark.parametrize(("share", "allowed"), [(0.49, True), (0.51, False)])
def test_slow_inference_is_refused(share, allowed):
    engine = SimpleNamespace(spec=make_spec(1))
    policy = replace(LoadedPolicy(engine, configure(1)), latency_s=share * DT_S)
    if allowed:
        check_latency(policy)
        return
    with pytest.raises(ValueError, match=r"allowed with rtc.mode instant is 0\.0200 s, half a control period"):
        check_latency(policy)
