"""choice (MMBench): four options, one of them right; scored by the letter, and circularly (`rotations`)."""

from __future__ import annotations

from numpy.random import Generator

from pixelis.core.geometry import Size
from pixelis.world.palette import VIVID
from pixelis.world.programs import Facts, area, centre_distance, get_box, get_centre, require_first, require_single
from pixelis.world.stage import Stage
from pixelis.world.tasks.staging import (
    COMMON_FIGURES,
    PATTERN_PAINTS,
    add_decoy,
    add_group,
    make_options,
    make_stage_pair,
    pattern_colours,
    plural_phrase,
    sample_colour_figures,
    solve_text_on,
)
from pixelis.world.template import Brief, ItemDraft, load_templates, make_draft
from pixelis.world.vocabulary import choose, choose_name, sample, sample_int

IMAGE_SIZE = Size(512, 512)


def _compose_present(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    colour_figures = sample_colour_figures(brief.rng, stage.colours, 4)
    (target,) = add_group(brief, stage, colour_figures[:1], big=brief.sample_is_large())
    options = make_options(brief.rng, target.phrase, [f"{c} {f}" for c, f in colour_figures[1:]])
    for colour, figure in colour_figures[1:]:  # another figure has the colour of a wrong option
        if brief.bernoulli(0.6):
            add_decoy(stage, colour, figure)
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=tuple(c for c, _ in colour_figures))
    return make_draft(stage, [target], {"wanted": "present"}, options)


def _compose_absent(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    colour_figures = sample_colour_figures(brief.rng, stage.colours, 4)
    things = add_group(brief, stage, colour_figures[1:], big=brief.sample_is_large())
    colour, figure = colour_figures[0]
    if brief.bernoulli(0.6):
        add_decoy(stage, colour, figure)
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=tuple(c for c, _ in colour_figures))
    options = make_options(brief.rng, f"{colour} {figure}", [thing.phrase for thing in things])
    return make_draft(stage, things, {"wanted": "absent"}, options)


def _solve_presence(facts: Facts) -> str:
    want_present = facts.text("wanted") == "present"
    matches = [o for o in facts.words("options") if bool(facts.regions(o)) == want_present]
    return require_single(matches, "options fit")


def _compose_extreme(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    colour_figures = sample_colour_figures(brief.rng, stage.colours, 4)
    word = choose(brief.rng, ("leftmost", "rightmost", "topmost", "bottommost"))
    big = brief.sample_is_large()
    slots = sample(brief.rng, range(4), 4)
    things = []
    for (colour, figure), slot in zip(colour_figures, slots, strict=True):
        radius = 38 if big else min(stage.sample_radius(big=False), 36)
        along = 70 + slot * 124 + int(brief.rng.integers(-16, 17))
        box = stage.layout.find_room(2 * radius + 8, 2 * radius + 8, gap=20)
        centre_px = (along, box[1] + radius + 4) if word in ("leftmost", "rightmost") else (box[0] + radius + 4, along)
        things.append(stage.add(colour, figure, radius, at=centre_px))
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=tuple(c for c, _ in colour_figures))
    options = tuple(sample(brief.rng, [thing.phrase for thing in things], 4))
    return make_draft(stage, things, {"most": word}, options)


def _compose_size(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    colour_figures = sample_colour_figures(brief.rng, stage.colours, 4)
    word, big = choose(brief.rng, ("largest", "smallest")), brief.sample_is_large()
    radii = (32, 40, 50, 63) if big else (16, 21, 27, 35)
    things = []
    for (colour, _), radius in zip(colour_figures, radii, strict=True):
        things.append(stage.add(colour, choose(brief.rng, ("circle", "square", "diamond")), radius, gap=18))
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=tuple(c for c, _ in colour_figures))
    options = tuple(sample(brief.rng, [thing.phrase for thing in things], 4))
    return make_draft(stage, things, {"most": word}, options)


def _solve_most(facts: Facts) -> str:
    rank = {
        "leftmost": lambda r: get_centre(r)[0],
        "rightmost": lambda r: -get_centre(r)[0],
        "topmost": lambda r: get_centre(r)[1],
        "bottommost": lambda r: -get_centre(r)[1],
        "largest": lambda r: -area(r),
        "smallest": area,
    }[facts.text("most")]
    ranking = [(rank(facts.region(option)), option) for option in facts.words("options")]
    return min(ranking)[1]


def _compose_count(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    colour, figure, big = stage.colours[0], choose(brief.rng, COMMON_FIGURES), brief.sample_is_large()
    count = sample_int(brief.rng, 2, 4 if big else 7)
    things = add_group(brief, stage, [(colour, figure)] * count, big=big)
    for _ in range(2):
        add_decoy(stage, colour, figure, gap=26)
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=(colour,))
    wrong = sample(brief.rng, [v for v in range(max(count - 3, 1), count + 4) if v != count], 3)
    options = make_options(brief.rng, str(count), [str(v) for v in wrong])
    return make_draft(stage, things, {"target": f"{colour} {figure}"}, options)


def _solve_count(facts: Facts) -> str:
    return str(facts.count(facts.text("target")))


def _compose_colour(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    figure, colour, big = choose(brief.rng, COMMON_FIGURES), stage.colours[0], brief.sample_is_large()
    target = stage.add(colour, figure, stage.sample_radius(big=big))
    stage.maybe_occlude(target)
    others = [c for c in stage.colours[1:4]]
    for other in others[: 1 + brief.difficulty.level // 2]:
        add_decoy(stage, other, figure)
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=(colour, *others), unlike=figure)
    parameters = {"figure": figure, "attribute": "colour"}
    return make_draft(stage, [target], parameters, make_options(brief.rng, colour, [*others, *VIVID]))


def _solve_colour(facts: Facts) -> str:
    figure = facts.text("figure")
    matches = [r for r in facts.references if r.footprint.kind == "mask" and r.footprint.label.endswith(f" {figure}")]
    return str(require_first(matches, f"there is no {figure}").properties["colour"])


def _compose_panel(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    correct = choose_name(brief.rng)
    panel, text = stage.add_panel(stage.standalone_colours[0], correct, stage.sample_text_px())
    stage.add_panel(stage.standalone_colours[1], choose_name(brief.rng), stage.sample_text_px())
    stage.add_distractors(brief.difficulty.distractors - 2, avoid=(panel.colour,))
    wrong = [misspell(brief.rng, correct) for _ in range(8)]
    parameters = {"target": panel.phrase, "colour": panel.colour}
    return make_draft(stage, [panel, text], parameters, make_options(brief.rng, correct, wrong))


def misspell(rng: Generator, word: str) -> str:
    """A word with one letter replaced."""
    index = int(rng.integers(1, len(word)))
    letters = [c for c in "abdefghkmnoprstuvz" if c != word[index].lower()]
    return word[:index] + choose(rng, letters) + word[index + 1 :]


def _compose_neighbour(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    colour_figures = sample_colour_figures(brief.rng, stage.colours, 5)
    big = brief.sample_is_large()
    radius = 34 if big else min(stage.sample_radius(big=False), 30)
    middle_px = (int(brief.rng.integers(190, 322)), int(brief.rng.integers(190, 322)))
    subject = stage.add(*colour_figures[0], radius, at=middle_px)
    things = []
    turns = sample(brief.rng, range(4), 4)
    for k, (pair, turn) in enumerate(zip(colour_figures[1:], turns, strict=True)):
        dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[turn]
        distance = 92 if k == 0 else int(brief.rng.integers(138, 152))
        things.append(stage.add(*pair, radius, at=(middle_px[0] + dx * distance, middle_px[1] + dy * distance)))
    stage.add_distractors(brief.difficulty.distractors - 3, avoid=tuple(c for c, _ in colour_figures))
    options = tuple(sample(brief.rng, [thing.phrase for thing in things], 4))
    return make_draft(stage, [subject, *things], {"target": subject.phrase, "aspect": 1.0}, options)


def _solve_neighbour(facts: Facts) -> str:
    target_box = facts.box("target")
    distance = lambda option: centre_distance(target_box, get_box(facts.region(option)), facts.aspect)  # noqa: E731
    return min((distance(option), option) for option in facts.words("options"))[1]


def _compose_pattern(brief: Brief) -> ItemDraft:
    stage = Stage(brief, IMAGE_SIZE)
    pattern = choose(brief.rng, ("striped", "checkered"))
    hues = pattern_colours(stage)[:4]
    things = []
    for k, colour in enumerate(hues):
        style = pattern if k == 0 else "plain"
        figure, radius = choose(brief.rng, ("circle", "diamond")), 52 - 2 * brief.difficulty.level
        things.append(stage.add(colour, figure, radius, pattern=style, paint_rgb=PATTERN_PAINTS[colour], turn=0.0))
    stage.add_distractors(brief.difficulty.distractors // 2, avoid=tuple(hues))
    options = tuple(sample(brief.rng, [thing.phrase for thing in things], 4))
    return make_draft(stage, things, {"pattern": pattern, "attribute": "texture"}, options)


def _solve_pattern(facts: Facts) -> str:
    pattern = facts.text("pattern")
    matches = [o for o in facts.words("options") if facts.region(o).properties["texture"] == pattern]
    return require_single(matches, f"options are {pattern}")


def _compose_pair_more(brief: Brief) -> ItemDraft:
    first, second, shared = make_stage_pair(brief, Size(448, 448))
    colour, figure = shared[0], choose(brief.rng, COMMON_FIGURES)
    answer, big = int(brief.rng.integers(4)), brief.sample_is_large()
    low = sample_int(brief.rng, 1, 3)
    more = low + sample_int(brief.rng, 1, 2)
    counts = {0: (more, low), 1: (low, more), 2: (low, low), 3: (0, 0)}[answer]
    evidence = []
    for stage, count in zip((first, second), counts, strict=True):
        evidence += add_group(brief, stage, [(colour, figure)] * count, big=big)
        if brief.bernoulli(0.7) or not count:
            add_decoy(stage, colour, figure, gap=26)
        stage.add_distractors(brief.difficulty.distractors - 2, avoid=(colour,))
    options = tuple(sample(brief.rng, ("Image_0", "Image_1", "as many in both", "none in either"), 4))
    parameters = {"target": f"{colour} {figure}", "plural": plural_phrase(colour, figure)}
    return make_draft((first, second), evidence, parameters, options)


def _solve_pair_more(facts: Facts) -> str:
    first, second = (facts.count(facts.text("target"), f"Image_{k}") for k in (0, 1))
    if first == second:
        return "as many in both" if first else "none in either"
    return "Image_0" if first > second else "Image_1"


TEMPLATES = load_templates(
    "choice",
    present=(_compose_present, _solve_presence),
    absent=(_compose_absent, _solve_presence),
    extreme=(_compose_extreme, _solve_most),
    size=(_compose_size, _solve_most),
    count=(_compose_count, _solve_count),
    colour=(_compose_colour, _solve_colour),
    panel=(_compose_panel, solve_text_on),
    neighbour=(_compose_neighbour, _solve_neighbour),
    pattern=(_compose_pattern, _solve_pattern),
    pair_more=(_compose_pair_more, _solve_pair_more),
)
