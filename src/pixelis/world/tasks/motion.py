"""motion (MVBench), first part: what moves over a clip, where to, how fast, and out of the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pixelis.world.film import Actor, Film, Path
from pixelis.world.item import Scalar
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    aspect,
    heading,
    moved,
    text_of,
    track,
    words_of,
)
from pixelis.world.tasks.staging import FIGURES
from pixelis.world.template import Brief, ChainStep, Draft, Template
from pixelis.world.vocabulary import choose, listed, sample, whole

COMPASS = {
    "right": (1, 0), "up right": (1, -1), "up": (0, -1), "up left": (-1, -1),
    "left": (-1, 0), "down left": (-1, 1), "down": (0, 1), "down right": (1, 1),
}  # fmt: skip


def drafted(film: Film, evidence: Sequence[str], parameters: Mapping[str, object]) -> Draft:
    clip, references = film.finish()
    stretched = {**parameters, "aspect": film.size.height / film.size.width}
    return Draft((clip,), references, list(evidence), stretched, traits=film.traits)  # type: ignore[arg-type]


def cast(brief: Brief, film: Film, count: int) -> list[tuple[str, str]]:
    """Colours and figures for several things, no colour twice."""
    return [(colour, choose(brief.rng, FIGURES)) for colour in film.colours[:count]]


def lanes(brief: Brief, film: Film, count: int) -> list[float]:
    """Heights at which things pass without meeting, in random order."""
    gap = film.size.height / count
    return sample(brief.rng, [gap * (k + 0.5) for k in range(count)], count)


def way(brief: Brief, film: Film, word: str, middle_px: tuple[float, float], far: float) -> Path:
    """A straight way of this length in a direction, around a middle."""
    dx, dy = COMPASS[word]
    step = far / 2 / (2**0.5 if dx and dy else 1.0)
    start = (middle_px[0] - dx * step, middle_px[1] - dy * step)
    return film.straight(start, (middle_px[0] + dx * step, middle_px[1] + dy * step))


def _direction(brief: Brief) -> Draft:
    film = Film(brief)
    width, height = film.size
    words = [choose(brief.rng, tuple(COMPASS)), choose(brief.rng, tuple(COMPASS))]
    spots = sample(brief.rng, [(width * 0.27, height * 0.5), (width * 0.73, height * 0.5)], 2)
    far = brief.rng.uniform(0.34, 0.42) * height
    made = [
        film.add(colour, figure, way(brief, film, word, spot, far))
        for (colour, figure), word, spot in zip(cast(brief, film, 2), words, spots, strict=True)
    ]
    draft = drafted(film, [made[0].name], {"target": made[0].phrase})
    draft.accepted = lambda answer: (answer, answer.replace(" ", "-"))
    return draft


def _heading(references: References, parameters: Parameters) -> str:
    return heading(*moved(track(references, text_of(parameters, "target")), aspect(parameters)))


def _mover(brief: Brief) -> Draft:
    film = Film(brief)
    width, _ = film.size
    pairs, rows = cast(brief, film, 4), lanes(brief, film, 4)
    made: list[Actor] = []
    for k, ((colour, figure), row) in enumerate(zip(pairs, rows, strict=True)):
        x = brief.rng.uniform(0.2, 0.8) * width
        path = film.still(x, row)
        if k == 0:
            ends = sample(brief.rng, (brief.rng.uniform(0.14, 0.3) * width, brief.rng.uniform(0.7, 0.86) * width), 2)
            path = film.straight((ends[0], row), (ends[1], row))
        made.append(film.add(colour, figure, path, radius=min(film.radius(), 26)))
    phrases = tuple(sample(brief.rng, [a.phrase for a in made], 4))
    return drafted(film, [a.name for a in made], {"things": phrases, "listed": listed(phrases)})


def _moving(references: References, parameters: Parameters) -> str:
    ways = {p: moved(track(references, p), aspect(parameters)) for p in words_of(parameters, "things")}
    movers = [p for p, (across, down) in ways.items() if heading(across, down) != "still"]
    if len(movers) != 1:
        raise Unanswerable(f"{len(movers)} of them move")
    return movers[0]


def _fastest(brief: Brief) -> Draft:
    film = Film(brief)
    width, _ = film.size
    made = []
    for (colour, figure), row, share in zip(
        cast(brief, film, 3), lanes(brief, film, 3), (0.62, 0.36, 0.2), strict=True
    ):
        length, side = share * width * brief.rng.uniform(0.94, 1.06), choose(brief.rng, (-1, 1))
        start = width / 2 - side * length / 2
        made.append(film.add(colour, figure, film.straight((start, row), (start + side * length, row))))
    phrases = tuple(sample(brief.rng, [a.phrase for a in made], 3))
    most = choose(brief.rng, ("fastest", "slowest"))
    return drafted(film, [a.name for a in made], {"things": phrases, "listed": listed(phrases), "most": most})


def _by_speed(references: References, parameters: Parameters) -> str:
    found = []
    for phrase in words_of(parameters, "things"):
        followed = track(references, phrase)
        across, down = moved(followed, aspect(parameters))
        found.append(((across**2 + down**2) ** 0.5 / max(len(followed.frames) - 1, 1), phrase))
    return (max(found) if text_of(parameters, "most") == "fastest" else min(found))[1]


def _pair(brief: Brief) -> Draft:
    films = [Film(brief, frames=36, media=f"Video_{k}") for k in (0, 1)]
    shared = [c for c in films[0].colours if c in films[1].colours]
    word, figure = choose(brief.rng, ("left", "right", "up", "down")), choose(brief.rng, FIGURES)
    answer = int(brief.rng.integers(4))
    evidence = []
    for film, goes in zip(films, (answer in (0, 2), answer in (1, 2)), strict=True):
        width, height = film.size
        back = {"left": "right", "right": "left", "up": "down", "down": "up"}[word]
        spots = sample(brief.rng, [(width * 0.28, height * 0.5), (width * 0.72, height * 0.5)], 2)
        far = 0.38 * height
        asked = film.add(shared[0], figure, way(brief, film, word if goes else back, spots[0], far))
        film.add(
            choose(brief.rng, shared[1:]),
            choose(brief.rng, FIGURES),
            way(brief, film, choose(brief.rng, (word, back)), spots[1], far),
        )
        film.traits.add("pair")
        evidence.append(asked.name)
    made = [film.finish() for film in films]
    parameters: dict[str, Scalar | tuple[Scalar, ...]] = {
        "target": f"{shared[0]} {figure}",
        "way": word,
        "aspect": 0.75,
    }
    references = [r for _, found in made for r in found]
    return Draft(
        tuple(clip for clip, _ in made), references, evidence, parameters, traits=films[0].traits | films[1].traits
    )


def _which_clip(references: References, parameters: Parameters) -> str:
    first, second = (
        heading(*moved(track(references, text_of(parameters, "target"), f"Video_{k}"), aspect(parameters)))
        == text_of(parameters, "way")
        for k in (0, 1)
    )
    return {(True, False): "Video_0", (False, True): "Video_1", (True, True): "both"}.get((first, second), "neither")


def _leaver(brief: Brief) -> Draft:
    film = Film(brief, frames=44)
    width, _ = film.size
    made = []
    for k, ((colour, figure), row) in enumerate(zip(cast(brief, film, 3), lanes(brief, film, 3), strict=True)):
        side, x = choose(brief.rng, (-1, 1)), brief.rng.uniform(0.3, 0.7) * width
        goal = (width + 60 if side > 0 else -60) if k == 0 else x + side * 0.15 * width
        last = whole(brief.rng, 24, 34) if k == 0 else film.frames
        path = film.straight((x, row), (goal, row), 0, last)
        made.append(film.add(colour, figure, path))
    phrases = tuple(sample(brief.rng, [a.phrase for a in made], 3))
    return drafted(
        film,
        [a.name for a in made],
        {"things": phrases, "listed": listed(phrases), "frames": film.frames, "last_frame": film.frames - 1},
    )


def _gone(references: References, parameters: Parameters) -> str:
    last = int(str(parameters["frames"])) - 1
    gone = [p for p in words_of(parameters, "things") if track(references, p).frames[-1] < last]
    if len(gone) != 1:
        raise Unanswerable(f"{len(gone)} of them are gone at the end")
    return gone[0]


START = ChainStep(tool="SEG", args={"target": "{target}", "frame": 0})
FOLLOW = ChainStep(tool="TRK", args={"box": "$1.box"})
EACH = ChainStep(tool="SEG", args={"target": "{things[i]}", "frame": 0}, note="once for each")
EACH_FOLLOWED = ChainStep(tool="TRK", args={"box": "$i.box"}, note="once for each")

TEMPLATES = (
    Template(
        "motion.direction", "motion",
        (
            "In which direction does the {target} move? Answer like: left, up right, down.",
            "Where does the {target} go: left, right, up, down, or in between such as up left?",
            "Which way does the {target} travel over the clip (for instance right, or down left)?",
            "Give the direction of the {target}'s movement: up, down, left, right or a diagonal such as down right.",
        ),
        _direction, _heading, "exact", (START, FOLLOW), doc="the direction of the track from its first box to its last",
    ),
    Template(
        "motion.mover", "motion",
        (
            "Which of these moves: {listed}?",
            "Only one of {listed} changes its place. Which?",
            "Among {listed}, what moves during the clip?",
            "What does not stay where it is: {listed}?",
        ),
        _mover, _moving, "exact", (EACH, EACH_FOLLOWED), doc="the thing whose track is not still",
    ),
    Template(
        "motion.fastest", "motion",
        (
            "Which is the {most}: {listed}?",
            "Of {listed}, which moves {most}?",
            "Compare the speeds of {listed}: which is the {most}?",
            "Name the {most} of these: {listed}.",
        ),
        _fastest, _by_speed, "exact", (EACH, EACH_FOLLOWED), doc="compare the lengths of the tracks",
    ),
    Template(
        "motion.pair", "motion",
        (
            "In which clip does the {target} move {way}: Video_0, Video_1, both or neither?",
            "Where does the {target} go {way}? Answer Video_0, Video_1, both or neither.",
            "The {target} is in both clips. In which one does it move {way}: Video_0, Video_1, both or neither?",
            "Video_0, Video_1, both or neither: where is the {target} moving {way}?",
        ),
        _pair, _which_clip, "exact",
        (
            ChainStep(tool="SEG", args={"target": "{target}", "frame": 0, "media": "Video_0"}),
            ChainStep(tool="TRK", args={"box": "$1.box", "media": "Video_0"}),
            ChainStep(tool="SEG", args={"target": "{target}", "frame": 0, "media": "Video_1"}),
            ChainStep(tool="TRK", args={"box": "$3.box", "media": "Video_1"}),
        ),
        doc="the directions of both tracks",
    ),
    Template(
        "motion.leaver", "motion",
        (
            "Which of these leaves the picture: {listed}?",
            "At the end one of {listed} is gone. Which?",
            "Among {listed}, what moves out of the frame?",
            "Which can no longer be seen at the end: {listed}?",
        ),
        _leaver, _gone, "exact",
        (ChainStep(tool="SEG", args={"target": "{things[i]}", "frame": "{last_frame}"}, note="once for each"),),
        doc="the thing whose call fails",
    ),
)  # fmt: skip
