"""Guards against: a candidate chosen that cannot run, a slower one preferred to a faster one, measurements of another
machine or version trusted, a choice without a reason, and a profile file that fails with a traceback.
"""

from __future__ import annotations

import json

import pytest
import torch

from phyai_kernels.dense import DENSE_GEGLU
from phyai_kernels.dispatch import Dispatcher, describe_problem, open_dispatcher
from phyai_kernels.op import Candidate, Op
from phyai_kernels.profile import Profile, default_folder, load_profile

CPU = torch.device("cpu")


def able(*_, **__):
    return None


def double(x):
    return 2 * x


FAST = Candidate("fast", lambda x: x + x, able)
SLOW = Candidate("slow", lambda x: x * 2, able)
BROKEN = Candidate("broken", lambda x: 1 / 0, lambda device, x: f"takes no {x.dtype}")
OP = Op("double", double, first=(BROKEN, SLOW), others=(FAST,))
X = torch.ones(3)
PROBLEM = "float32[3]"


def profile_with(**times):
    profile = Profile.empty(CPU)
    for name, microseconds in times.items():
        profile.record("double", PROBLEM, name, microseconds)
    return profile


def test_without_a_profile_the_first_that_can_run_is_taken():
    dispatcher = Dispatcher(CPU)
    assert dispatcher.pick(OP, X) is SLOW.run
    assert dispatcher.choices[0].reasons == {
        "broken": "refused: takes no torch.float32",
        "slow": "taken: first that can run (no profile)",
        "fast": "not taken: a candidate before it can run",
        "reference": "not taken: a candidate before it can run",
    }


def test_the_fastest_measured_candidate_is_taken_unless_it_cannot_run():
    dispatcher = Dispatcher(CPU, profile_with(broken=0.1, slow=9.0, fast=2.0))
    assert dispatcher.pick(OP, X) is FAST.run
    assert "fast: taken: fastest, 2.0 us measured" in dispatcher.explain()
    assert "reference: not taken: not measured" in dispatcher.explain()


@pytest.mark.parametrize(("fast_us", "taken"), [(9.7, "slow"), (9.3, "fast")])
def test_the_preferred_candidate_is_only_left_for_one_that_is_clearly_faster(fast_us, taken):
    dispatcher = Dispatcher(CPU, profile_with(slow=10.0, fast=fast_us, reference=50.0))
    dispatcher.pick(OP, X)
    (choice,) = dispatcher.choices
    assert choice.taken == taken
    words = {"slow": "taken: preferred, at most 5% slower than the fastest", "fast": "taken: fastest"}
    assert choice.reasons[taken].startswith(words[taken])
    other = "not taken: at most 5% faster, 9.7 us" if taken == "slow" else "not taken: slower, 10.0 us"
    assert choice.reasons["fast" if taken == "slow" else "slow"].startswith(other)


def test_another_problem_is_not_decided_by_the_measurement():
    dispatcher = Dispatcher(CPU, profile_with(fast=2.0))
    assert dispatcher.pick(OP, torch.ones(4)) is SLOW.run
    assert "this call is not in the profile" in dispatcher.explain()


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"device": "other"}, "measured on other, this is cpu"), ({"versions": {"torch": "1.0"}}, "torch 1.0, now")],
)
def test_measurements_of_another_machine_or_version_are_set_aside(change, reason):
    profile = profile_with(fast=2.0)
    for name, value in change.items():
        setattr(profile, name, value)
    dispatcher = Dispatcher(CPU, profile)
    assert dispatcher.pick(OP, X) is SLOW.run
    assert reason in dispatcher.explain()


def test_a_profile_is_found_again_where_profiles_are_kept_and_decides(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_dispatcher(CPU).profile is None
    profile = profile_with(fast=2.0, slow=9.0)
    assert profile.save(default_folder()) == tmp_path / "phyai_ros" / "kernels" / "cpu.json"
    for dispatcher in (open_dispatcher(CPU), open_dispatcher(CPU, tmp_path / "phyai_ros" / "kernels")):
        assert dispatcher.profile == profile and dispatcher.pick(OP, X) is FAST.run
    assert open_dispatcher(CPU, tmp_path).profile is None


def test_what_failed_when_it_was_measured_is_not_taken_and_the_reference_remains():
    profile = profile_with(slow=9.0)
    profile.record("double", PROBLEM, "fast", "no compiler")
    dispatcher = Dispatcher(CPU, profile)
    assert dispatcher.pick(OP, X) is SLOW.run
    assert "fast: refused: failed when it was measured: no compiler" in dispatcher.explain()
    for name in ("slow", "reference"):
        profile.record("double", PROBLEM, name, "out of memory")
    assert dispatcher.pick(OP, X) is OP.reference


def test_a_broken_file_is_named(tmp_path):
    assert load_profile(tmp_path, CPU) is None
    for content in ("{", json.dumps({"device": "cpu"})):
        (tmp_path / "cpu.json").write_text(content)
        with pytest.raises(ValueError, match="is not a kernel profile"):
            load_profile(tmp_path, CPU)


def test_a_problem_is_named_by_types_shapes_and_options():
    arguments = (torch.ones(2, 3), None, (X, X), 4)
    assert describe_problem(arguments, {"geglu": True, "scales": None}) == (
        "float32[2,3] (float32[3] float32[3]) 4 geglu=True"
    )


def test_the_cpu_takes_references_and_says_why_not_the_others():
    x, weight, out = torch.ones(2, 128), torch.ones(256, 128), torch.empty(2, 128)
    dispatcher = Dispatcher(CPU)
    assert dispatcher.pick(DENSE_GEGLU, x, weight, out, geglu=True) is DENSE_GEGLU.reference
    assert "cublas: refused: needs a CUDA device, not cpu" in dispatcher.explain()
