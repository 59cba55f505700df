"""When a leader may answer what it does not append: only if nobody can have taken over unseen."""

from __future__ import annotations

from quintal_placer.assurance import Assurance

FRESH_S = 0.7


def beating(assurance: Assurance, begin_s: float, count: int, first: int = 0) -> float:
    """Beats every 0.2 s that come back at once; gives the time of the last one."""
    now_s = begin_s
    for beat in range(first, first + count):
        now_s = begin_s + 0.2 * (beat - first)
        assurance.sent(beat, now_s)
        assurance.came_back(beat, now_s + 0.001)
    return now_s


def test_beats_alone_are_no_proof_and_an_append_alone_is_none() -> None:
    assurance = Assurance(FRESH_S)
    assert not assurance.is_sure(0.0, proved_s=0.0)
    last_s = beating(assurance, 0.0, 5)
    assert not assurance.is_sure(last_s, proved_s=-1.0)


def test_an_append_sent_after_the_first_beat_came_back_proves_it_while_beats_come() -> None:
    assurance = Assurance(FRESH_S)
    last_s = beating(assurance, 0.0, 20)
    assert assurance.is_sure(last_s, proved_s=0.01)
    assert not assurance.is_sure(last_s, proved_s=0.0), "it was sent before the beat was back"
    assert not assurance.is_sure(last_s + 0.8, proved_s=0.01), "no beat for a while"


def test_a_beat_that_comes_back_after_a_hole_proves_nothing_of_the_hole() -> None:
    assurance = Assurance(FRESH_S)
    beating(assurance, 0.0, 5)
    for beat in range(5, 20):
        assurance.sent(beat, 1.0 + 0.2 * (beat - 5))
    for beat in range(5, 20):  # held for three seconds, and delivered all at once
        assurance.came_back(beat, 4.0)
    assert assurance.is_fresh(4.0)
    assert not assurance.is_sure(4.0, proved_s=0.5), "a standby may have taken over meanwhile"
    assert not assurance.is_sure(4.0, proved_s=3.9), "the append was stored before the hole's end"
    assert assurance.is_sure(4.1, proved_s=4.05)


def test_another_leaders_beat_takes_all_assurance_until_an_append_proves_it_anew() -> None:
    assurance = Assurance(FRESH_S)
    last_s = beating(assurance, 0.0, 5)
    assurance.doubt()
    assert not assurance.is_sure(last_s, proved_s=last_s)
    last_s = beating(assurance, last_s + 0.2, 5, first=5)
    assert not assurance.is_sure(last_s, proved_s=0.5)
    assert assurance.is_sure(last_s, proved_s=last_s)
