"""The oracle before photographs: what annotations of COCO's kind can be asked about.

SEG is asked in the question's own words, as a policy would that can copy but not translate. The detector sees what it
sees: there is no second way to a thing that it missed, so that the answer is as right as the tools were.
"""

from __future__ import annotations

from pixelis.data import detours
from pixelis.data.oracle_acts import Hands
from pixelis.data.oracle_session import Found
from pixelis.geometry import Mask
from pixelis.world.item import Scalar

RECOUNT = 0.3
"""How often a count is checked by PROP, of the rate at which the family counts again."""


def asked(h: Hands, key: str) -> str:
    return str(h.s.item.parameters[key])


def seek(h: Hands, phrase: str, label: str, *, media: str | None = None, plan: str = "find") -> list[Found]:
    """What SEG finds for the words of the question, kept under the class that the references have for it."""
    s, d = h.s, h.detours
    if d.take("unknown", scale=0.5):
        s.seg(detours.vague(s, phrase), "find", media=media)
        plan = "instead"
    elif d.take("refused"):
        detours.refused(s, "SEG", phrase, plan, target=phrase, media=media)
        plan = "correct"
    found = s.seg(phrase, plan, media=media)
    if not found:
        s.cited.add(s.looked)  # that nothing was found is what the answer rests on
    return [one._replace(phrase=label) for one in found]


def keep(h: Hands, found: Found, **properties: Scalar) -> None:
    mask = Mask.model_validate({**found.mask.model_dump(), "label": found.phrase})  # without the array that it caches
    h.s.note(mask, found.step, **properties)


def the(h: Hands, phrase: str, label: str, *, media: str | None = None) -> Found | None:
    """The thing that is meant: the largest, where there are several."""
    found = seek(h, phrase, label, media=media)
    return max(found, key=lambda f: f.mask.area, default=None)


# --- how many


def count(h: Hands) -> None:
    """Every region of the noun; perhaps PROP counts too."""
    s = h.s
    words, media = asked(h, "things"), s.item.parameters.get("media")
    found = seek(h, words, asked(h, "target"), media=None if media is None else str(media), plan="count")
    for one in found:
        keep(h, one)
    if found and h.detours.take("recount", scale=RECOUNT):
        s.call("PROP", "check", of=words, attributes=["count"], media=media)


def count_class(h: Hands) -> None:
    """The same where the question names a class of the annotations."""
    for one in seek(h, asked(h, "target"), asked(h, "target"), plan="count"):
        keep(h, one)


# --- one thing


def where(h: Hands) -> None:
    """Find it, then ask in which part of the picture it is."""
    found = the(h, asked(h, "thing"), asked(h, "target"))
    if found is None:
        return
    keep(h, found)
    h.s.cited |= h.describe(found, "position").steps


def colour(h: Hands) -> None:
    """Find it, then ask for its colour."""
    found = the(h, asked(h, "thing"), asked(h, "target"))
    if found is None:
        return
    said = h.describe(found, "colour")
    keep(h, found, **({"colour": said.value} if said.value else {}))
    h.s.cited |= said.steps


def there(h: Hands) -> None:
    found = seek(h, asked(h, "thing"), asked(h, "target"))
    for one in found[:1]:
        keep(h, one)
    if found and h.detours.take("check", scale=0.5):
        detours.check(h.s, found[0])


def missing(h: Hands) -> None:
    """It is looked for as if it were there."""
    for one in seek(h, asked(h, "thing"), asked(h, "target"))[:1]:
        keep(h, one)


# --- two things


def pair(h: Hands, words: tuple[str, str], labels: tuple[str, str]) -> None:
    for phrase, label in zip(words, labels, strict=True):
        if (found := the(h, phrase, label)) is not None:
            keep(h, found)


def two_things(h: Hands) -> None:
    pair(h, (asked(h, "thing_a"), asked(h, "thing_b")), (asked(h, "a"), asked(h, "b")))


def side(h: Hands) -> None:
    both = asked(h, "a"), asked(h, "b")
    pair(h, both, both)


def largest(h: Hands) -> None:
    """Every option in turn."""
    for name in h.s.item.options:
        if (found := the(h, name, name)) is not None:
            keep(h, found)


def which_picture(h: Hands) -> None:
    for media in ("Image_0", "Image_1"):
        for one in seek(h, asked(h, "thing"), asked(h, "target"), media=media)[:1]:
            keep(h, one)


SOLVERS = {
    "coco.count": count_class,
    "coco.side": side,
    "coco.largest": largest,
    "photo.count": count,
    "photo.count_in": count,
    "photo.where": where,
    "photo.colour": colour,
    "photo.there": there,
    "photo.larger": two_things,
    "photo.side": two_things,
    "photo.missing": missing,
    "photo.which_picture": which_picture,
}
