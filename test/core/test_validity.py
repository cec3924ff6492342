"""Guards against reading the prefix of the last observation or the tables of other weights, and against computing
twice what one observation needs once."""

from __future__ import annotations

import weakref

import pytest

from phyai_core.validity import ExpiredError, Lifetime, Validity

NAMES = {"tables": Lifetime.STATIC, "prompt": Lifetime.PROMPT, "prefix": Lifetime.OBSERVATION, "mask": Lifetime.STEP}


@pytest.mark.parametrize("lifetime", Lifetime)
def test_beginning_a_lifetime_expires_it_and_the_shorter_ones(lifetime):
    validity = Validity(NAMES)
    handles = {name: validity.once(name, lambda name=name: f"{name} 0") for name in NAMES}
    validity.begin(lifetime)
    for name, kept in handles.items():
        if NAMES[name] < lifetime:
            assert kept.read() == validity.read(name) == f"{name} 0"
            continue
        with pytest.raises(ExpiredError, match=f"{name}: read after the end of its {NAMES[name].name} lifetime"):
            kept.read()
        with pytest.raises(ExpiredError, match=f"{name}: not computed in this {NAMES[name].name} lifetime"):
            validity.read(name)


def test_an_old_handle_stays_expired_when_the_value_is_computed_again():
    validity = Validity(NAMES)
    old = validity.once("prefix", lambda: "of observation 1")
    validity.begin(Lifetime.OBSERVATION)
    new = validity.once("prefix", lambda: "of observation 2")
    assert new.read() == "of observation 2"
    with pytest.raises(ExpiredError):
        old.read()


def test_a_value_is_computed_once_per_lifetime():
    validity, calls = Validity(NAMES), []
    for _ in range(3):
        validity.begin(Lifetime.OBSERVATION)
        for _ in range(4):
            validity.begin(Lifetime.STEP)
            validity.once("prompt", lambda: calls.append("prompt"))
            validity.once("prefix", lambda: calls.append("prefix"))
    assert (calls.count("prompt"), calls.count("prefix")) == (1, 3)


def test_expiry_releases_the_memory_though_a_handle_is_held():
    class Buffer:
        pass

    validity = Validity(NAMES)
    kept = validity.once("prefix", Buffer)
    alive = weakref.ref(kept.read())
    validity.begin(Lifetime.OBSERVATION)
    assert alive() is None and kept.name == "prefix"


def test_a_failed_computation_leaves_nothing_to_read():
    validity = Validity(NAMES)
    with pytest.raises(ZeroDivisionError):
        validity.once("prefix", lambda: 1 // 0)
    with pytest.raises(ExpiredError):
        validity.read("prefix")


def test_undeclared_names_are_a_mistake():
    with pytest.raises(KeyError):
        Validity(NAMES).once("kv", list)
