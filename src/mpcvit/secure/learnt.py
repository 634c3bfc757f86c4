"""Who learns what in a private run, for sentences and drawings; docs/threat_model.md has it all."""

from dataclasses import dataclass

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import Reveal

ANSWERS = {
    Reveal.CLASS: "the class of each image",
    Reveal.TOP5: "the five likeliest classes of each image",
    Reveal.ROUNDED: "the class and the rounded logits of each image",
    Reveal.LOGITS: "the logits of each image",
}


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Someone who takes part: what they hold, what they learn, and what they never see."""

    who: str
    holds: str
    learns: str
    never_sees: str
    could_see_all: bool = False

    @property
    def words(self) -> str:
        return f"{self.learns}; {self.never_sees}"


def who_learns(profile: Profile, reveal: Reveal = Reveal.CLASS) -> tuple[Learner, ...]:
    """Return everyone who takes part in a run: the data owner first, then the model owner.

    >>> from mpcvit.artifacts.profile import load_profile
    >>> [one.who for one in who_learns(load_profile("cheetah"))]
    ['data owner', 'model owner']
    """
    insecure = bool(profile.warning)
    found = [
        Learner(
            who="data owner",
            holds="the images",
            learns=f"{ANSWERS[reveal]}, and the network's shape",
            never_sees="no weight" if reveal is Reveal.LOGITS else "no logit, no weight",
        ),
        Learner(
            who="model owner",
            holds="the weights",
            learns=profile.warning or "how many images came",
            never_sees="not safe for real images" if insecure else "no pixel, no class",
            could_see_all=insecure,
        ),
    ]
    if profile.dealer is Dealer.THIRD_PARTY:
        found.append(
            Learner(
                who="dealer",
                holds="random numbers",
                learns="the sizes of the operations",
                never_sees="no pixel, no weight, no result",
            )
        )
    elif profile.protocol.parties > len(found):
        found.append(
            Learner(
                who="third party",
                holds="shares alone",
                learns="how many images came, and the network's shape",
                never_sees="no pixel, no weight, no class",
            )
        )
    return tuple(found)


def what_leaves(profile: Profile, server: str) -> str:
    """Return what leaves the data owner's machine, and what others learn from it.

    >>> from mpcvit.artifacts.profile import load_profile
    >>> print(what_leaves(load_profile("cheetah"), "model.example.org:9000"))
    Your pictures stay on this machine: only shares of them, which look like random numbers, \
go to model.example.org:9000, which learns how many images came, and sees no pixel, no class.
    """
    model, *thirds = who_learns(profile)[1:]
    if model.could_see_all:
        return f"Do not use real pictures. {profile.warning}."
    words = (
        "Your pictures stay on this machine: only shares of them, which look like random "
        f"numbers, go to {server}, which learns {model.learns}, and sees {model.never_sees}."
    )
    return words + "".join(
        f" The {third.who} learns {third.learns}, and sees {third.never_sees}." for third in thirds
    )
