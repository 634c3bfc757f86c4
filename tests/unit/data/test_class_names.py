import pytest

from mpcvit.data.class_names import match_classes
from mpcvit.errors import UserError


@pytest.mark.parametrize(
    ("found", "known", "places", "sentence"),
    [
        (["a", "b"], ["a", "b"], (0, 1), "matched by name, in the same order"),
        (["a", "b"], ["b", "a"], (1, 0), "in another order: a is 1, b is 0"),
        (["Great_Dane", "pug"], ["pug", "great dane"], (1, 0), "matched by name, in another"),
        (["b"], ["a", "b"], (1,), "matched by name, 1 of 2, in another order: b is 1"),
        (["0", "1"], ["0", "1"], (0, 1), "matched by name, in the same order"),
        (["1", "0"], ["0", "1"], (1, 0), "in another order"),
        (["a", "b"], ["0", "1"], (0, 1), "matched by order, because"),
        (["b"], ["a", "A", "b"], (2,), "matched by name, 1 of 3"),  # nobody asked for an a
    ],
)
def test_classes_are_matched(found, known, places, sentence):
    match = match_classes(found, known, where="photos")
    assert match.places == places
    assert sentence in match.sentence


@pytest.mark.parametrize(
    ("found", "known", "report"),
    [
        (["a", "c"], ["a", "b"], "photos has classes that the model does not know: c; .* a, b"),
        (list("abcdefg"), ["x"], "not know: a, b, c, d, e and 2 more"),
        (["a b", "a_b"], ["a b", "c"], "photos has the classes 'a b' and 'a_b'"),
        (["a", "b"], ["A", "a"], "the model has the classes 'A' and 'a'"),
        (["a"], ["0", "1"], "has 1 classes, but the model has 2 without names"),
    ],
)
def test_conflicts_are_refused(found, known, report):
    with pytest.raises(UserError, match=report):
        match_classes(found, known, where="photos")
