"""motion (MVBench), first part: what moves, where to, how fast, and what leaves the picture."""

from __future__ import annotations

from pixelis.world.film import Actor, Film, MotionPath
from pixelis.world.programs import Facts, displacement, heading, require_single
from pixelis.world.tasks.staging import COMMON_FIGURES, name_presence
from pixelis.world.template import Brief, ItemDraft, load_templates, make_measured_draft
from pixelis.world.vocabulary import choose, join_words, sample, sample_int

COMPASS = {
    "right": (1, 0), "up right": (1, -1), "up": (0, -1), "up left": (-1, -1),
    "left": (-1, 0), "down left": (-1, 1), "down": (0, 1), "down right": (1, 1),
}  # fmt: skip


def choose_figures(brief: Brief, film: Film, count: int) -> list[tuple[str, str]]:
    """Colours and figures for several things, with different colours."""
    return [(colour, choose(brief.rng, COMMON_FIGURES)) for colour in film.colours[:count]]


def choose_lanes(brief: Brief, film: Film, count: int) -> list[float]:
    """Heights at which things pass without touching, in random order."""
    gap = film.size.height / count
    return sample(brief.rng, [gap * (k + 0.5) for k in range(count)], count)


def directed_path(brief: Brief, film: Film, word: str, middle_px: tuple[float, float], length_px: float) -> MotionPath:
    """A straight path of this length in a direction, centred on a point."""
    dx, dy = COMPASS[word]
    step = length_px / 2 / (2**0.5 if dx and dy else 1.0)
    start = (middle_px[0] - dx * step, middle_px[1] - dy * step)
    return film.straight_path(start, (middle_px[0] + dx * step, middle_px[1] + dy * step))


def _compose_direction(brief: Brief) -> ItemDraft:
    film = Film(brief)
    width, height = film.size
    words = [choose(brief.rng, tuple(COMPASS)), choose(brief.rng, tuple(COMPASS))]
    spots = sample(brief.rng, [(width * 0.27, height * 0.5), (width * 0.73, height * 0.5)], 2)
    length_px = brief.rng.uniform(0.34, 0.42) * height
    actors = [
        film.add(colour, figure, directed_path(brief, film, word, spot, length_px))
        for (colour, figure), word, spot in zip(choose_figures(brief, film, 2), words, spots, strict=True)
    ]
    draft = make_measured_draft(film, actors[:1], {"target": actors[0].phrase})
    draft.accepted_answers = lambda answer: (answer, answer.replace(" ", "-"))
    return draft


def _solve_direction(facts: Facts) -> str:
    return heading(*displacement(facts.track(facts.text("target")), facts.aspect))


def _compose_mover(brief: Brief) -> ItemDraft:
    film = Film(brief)
    width, _ = film.size
    pairs, rows = choose_figures(brief, film, 4), choose_lanes(brief, film, 4)
    actors: list[Actor] = []
    for k, ((colour, figure), row) in enumerate(zip(pairs, rows, strict=True)):
        x = brief.rng.uniform(0.2, 0.8) * width
        path = film.still_path(x, row)
        if k == 0:
            ends = sample(brief.rng, (brief.rng.uniform(0.14, 0.3) * width, brief.rng.uniform(0.7, 0.86) * width), 2)
            path = film.straight_path((ends[0], row), (ends[1], row))
        actors.append(film.add(colour, figure, path, radius=min(film.sample_radius(), 26)))
    phrases = tuple(sample(brief.rng, [a.phrase for a in actors], 4))
    return make_measured_draft(film, actors, {"things": phrases, "listed": join_words(phrases)})


def _solve_mover(facts: Facts) -> str:
    move = lambda phrase: heading(*displacement(facts.track(phrase), facts.aspect))  # noqa: E731
    movers = [phrase for phrase in facts.words("things") if move(phrase) != "still"]
    return require_single(movers, "of them move")


def _compose_fastest(brief: Brief) -> ItemDraft:
    film = Film(brief)
    width, _ = film.size
    actors = []
    pairs, rows = choose_figures(brief, film, 3), choose_lanes(brief, film, 3)
    for (colour, figure), row, share in zip(pairs, rows, (0.62, 0.36, 0.2), strict=True):
        length, side = share * width * brief.rng.uniform(0.94, 1.06), choose(brief.rng, (-1, 1))
        start = width / 2 - side * length / 2
        actors.append(film.add(colour, figure, film.straight_path((start, row), (start + side * length, row))))
    phrases = tuple(sample(brief.rng, [a.phrase for a in actors], 3))
    most = choose(brief.rng, ("fastest", "slowest"))
    return make_measured_draft(film, actors, {"things": phrases, "listed": join_words(phrases), "most": most})


def _solve_fastest(facts: Facts) -> str:
    speeds = []
    for phrase in facts.words("things"):
        track = facts.track(phrase)
        across, down = displacement(track, facts.aspect)
        speeds.append(((across**2 + down**2) ** 0.5 / max(len(track.frames) - 1, 1), phrase))
    return (max(speeds) if facts.text("most") == "fastest" else min(speeds))[1]


def _compose_pair(brief: Brief) -> ItemDraft:
    films = [Film(brief, frames=36, media=f"Video_{k}") for k in (0, 1)]
    shared = [c for c in films[0].colours if c in films[1].colours]
    word, figure = choose(brief.rng, ("left", "right", "up", "down")), choose(brief.rng, COMMON_FIGURES)
    answer = int(brief.rng.integers(4))
    evidence = []
    for film, moves_that_way in zip(films, (answer in (0, 2), answer in (1, 2)), strict=True):
        width, height = film.size
        opposite = {"left": "right", "right": "left", "up": "down", "down": "up"}[word]
        spots = sample(brief.rng, [(width * 0.28, height * 0.5), (width * 0.72, height * 0.5)], 2)
        length_px = 0.38 * height
        path = directed_path(brief, film, word if moves_that_way else opposite, spots[0], length_px)
        evidence.append(film.add(shared[0], figure, path))
        colour, other = choose(brief.rng, shared[1:]), choose(brief.rng, COMMON_FIGURES)
        film.add(colour, other, directed_path(brief, film, choose(brief.rng, (word, opposite)), spots[1], length_px))
    return make_measured_draft(films, evidence, {"target": f"{shared[0]} {figure}", "way": word})


def _solve_pair(facts: Facts) -> str:
    names = ("Video_0", "Video_1")
    moves = [displacement(facts.track(facts.text("target"), name), facts.aspect) for name in names]
    return name_presence(names, [heading(*move) == facts.text("way") for move in moves])


def _compose_leaver(brief: Brief) -> ItemDraft:
    film = Film(brief, frames=44)
    width, _ = film.size
    actors = []
    pairs, rows = choose_figures(brief, film, 3), choose_lanes(brief, film, 3)
    for k, ((colour, figure), row) in enumerate(zip(pairs, rows, strict=True)):
        side, x = choose(brief.rng, (-1, 1)), brief.rng.uniform(0.3, 0.7) * width
        goal = (width + 60 if side > 0 else -60) if k == 0 else x + side * 0.15 * width
        last = sample_int(brief.rng, 24, 34) if k == 0 else film.frames
        path = film.straight_path((x, row), (goal, row), 0, last)
        actors.append(film.add(colour, figure, path))
    phrases = tuple(sample(brief.rng, [a.phrase for a in actors], 3))
    frames = {"frames": film.frames, "last_frame": film.frames - 1}
    return make_measured_draft(film, actors, {"things": phrases, "listed": join_words(phrases), **frames})


def _solve_leaver(facts: Facts) -> str:
    last = int(str(facts.parameters["frames"])) - 1
    leavers = [p for p in facts.words("things") if facts.track(p).frames[-1] < last]
    return require_single(leavers, "of them are gone at the end")


TEMPLATES = load_templates(
    "motion",
    direction=(_compose_direction, _solve_direction),
    mover=(_compose_mover, _solve_mover),
    fastest=(_compose_fastest, _solve_fastest),
    pair=(_compose_pair, _solve_pair),
    leaver=(_compose_leaver, _solve_leaver),
)
