"""What a report says first, of whatever it was made from; and the drawing of who learnt what."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.record import Reveal
from mpcvit.report.collect import Collected, Named, Table, TableKind
from mpcvit.report.parties import draw_parties
from mpcvit.report.story import headline
from mpcvit.secure.learnt import who_learns
from tests.unit.report.conftest import record


def private(network, form, seconds, agree=2, images=2, batch=1, **columns):
    row = {"network": network, "form": form, "top1": "80", "exchanges": "1"}
    row |= {"measured_s": seconds, "agree": agree, "images": images, "batch": batch} | columns
    return {name: str(value) for name, value in row.items()}


def of_rows(*rows, kind=TableKind.PIPELINE):
    table = Table(kind=kind, rows=rows)
    return headline(Collected(tables=(Named(name="t", path=Path("t.csv"), value=table),)))


def test_the_fastest_run_is_compared_with_the_first_plain_one():
    found = of_rows(
        private("softmax", "plain", 30, agree=1, images=1),
        private("mpcvit", "plain", 20),
        private("mpcvit", "lowered", 5),
    )
    assert found.sentence == (
        "Private predictions equal plaintext on 2 of 2 images; "
        "6.0 times faster than the plain network"
    )
    assert found.number == "6.0 ×"
    assert [fact.split(",")[0] for fact in found.facts] == ["softmax", "mpcvit"]


def test_a_disagreement_is_counted_over_all_runs():
    found = of_rows(private("softmax", "plain", 30), private("mpcvit", "lowered", 5, agree=1))
    assert "equal plaintext on 3 of 4 images" in found.sentence


def test_one_image_at_a_time_is_not_compared_with_many():
    found = of_rows(private("a", "plain", 30), private("a", "lowered", 2, batch=16))
    assert found.number == "2.0 s"
    assert "faster" not in found.sentence
    assert "16 at a time" in found.facts[0]


def test_modelled_seconds_are_called_so():
    simulated = (
        private("a", form, "", modelled_s=seconds)
        for form, seconds in (("plain", 9), ("lowered", 3))
    )
    found = of_rows(*simulated)
    assert found.number == "3.0 ×"
    assert all("modelled" in fact for fact in found.facts)


def test_records_alone_have_a_number_too():
    runs = tuple(
        Named(name="net", path=Path(form), value=replace(record(), form=form))
        for form in ("plain", "lowered")
    )
    found = headline(Collected(records=runs[1:]))
    assert (found.number, found.sentence) == ("6.0 s", "A private prediction, and what it took")


def test_an_experiment_says_which_network_is_best():
    rows = ({"network": "a", "top1_mean": "60.5"}, {"network": "b", "top1_mean": "71.25"})
    found = of_rows(*rows, kind=TableKind.SUMMARY)
    assert (found.number, found.sentence.split(",")[0]) == ("71.2 %", "b")
    assert headline(Collected()) is None


@pytest.mark.parametrize(
    ("profile", "who", "words"),
    [
        ("cheetah", 2, "no pixel, no class"),
        ("semi2k-dealer", 3, "no pixel, no weight, no result"),
        ("aby3", 3, "shares alone"),
        ("semi2k", 2, "INSECURE"),
    ],
)
def test_everyone_who_takes_part_is_drawn(profile, who, words):
    learners = who_learns(load_profile(profile), Reveal.TOP5)
    *parts, last = ElementTree.fromstring(draw_parties(learners))
    boxes, arrows = [*parts[::2], last], parts[1::2]
    assert [box.get("class") == "party risk" for box in boxes] == [
        profile == "semi2k" and place == 1 for place in range(who)
    ]
    assert words in " ".join(boxes[-1].itertext())
    assert "the five likeliest classes of each image" in " ".join(boxes[0].itertext())
    dealt = ["up dealt" in arrow.get("class") for arrow in arrows]
    assert dealt == [False, profile == "semi2k-dealer"][: who - 1]
