"""choice (MMBench): four options, one of them right; scored by the letter, and circularly (`rotations`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numpy.random import Generator

from pixelis.geometry import Size
from pixelis.world.figures import different
from pixelis.world.palette import VIVID
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    apart,
    area,
    aspect,
    box_of,
    centre,
    counted,
    region,
    regions,
    text_of,
    words_of,
)
from pixelis.world.stage import Stage, Thing
from pixelis.world.tasks.staging import (
    EACH_OPTION,
    FIGURES,
    LOOK,
    PATTERNED,
    both,
    four,
    group,
    pairs,
    plural,
    steady,
    text_on,
    two_stages,
)
from pixelis.world.template import Brief, ChainStep, Draft, Template
from pixelis.world.vocabulary import choose, name, sample, whole

PICTURE = Size(512, 512)


def drafted(
    stage: Stage, evidence: Sequence[Thing], parameters: Mapping[str, object], options: tuple[str, ...]
) -> Draft:
    image, references = stage.finish()
    names = [stage.named(thing) for thing in evidence]
    return Draft((image,), references, names, {**parameters, "options": options}, options, traits=stage.traits)  # type: ignore[dict-item]


def _present(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    wanted = pairs(brief.rng, stage.colours, 4)
    (target,) = group(brief, stage, wanted[:1], big=brief.glance())
    options = four(brief.rng, target.phrase, [f"{c} {f}" for c, f in wanted[1:]])
    for colour, figure in wanted[1:]:  # the colour of a wrong option is there, on another figure
        if brief.chance(0.6):
            stage.add(colour, choose(brief.rng, different(FIGURES, figure)), stage.radius(big=False))
    stage.distract(brief.dial.distractors - 2, avoid=tuple(c for c, _ in wanted))
    return drafted(stage, [target], {"wanted": "present"}, options)


def _absent(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    wanted = pairs(brief.rng, stage.colours, 4)
    made = group(brief, stage, wanted[1:], big=brief.glance())
    colour, figure = wanted[0]
    if brief.chance(0.6):
        stage.add(colour, choose(brief.rng, different(FIGURES, figure)), stage.radius(big=False))
    stage.distract(brief.dial.distractors - 2, avoid=tuple(c for c, _ in wanted))
    options = four(brief.rng, f"{colour} {figure}", [thing.phrase for thing in made])
    return drafted(stage, made, {"wanted": "absent"}, options)


def _there(references: References, parameters: Parameters) -> str:
    wanted = text_of(parameters, "wanted") == "present"
    fitting = [o for o in words_of(parameters, "options") if bool(regions(references, o)) == wanted]
    if len(fitting) != 1:
        raise Unanswerable(f"{len(fitting)} options fit")
    return fitting[0]


def _extreme(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    wanted = pairs(brief.rng, stage.colours, 4)
    word = choose(brief.rng, ("leftmost", "rightmost", "topmost", "bottommost"))
    big = brief.glance()
    slots = sample(brief.rng, range(4), 4)
    made = []
    for (colour, figure), slot in zip(wanted, slots, strict=True):
        radius = 38 if big else min(stage.radius(big=False), 36)
        along = 70 + slot * 124 + int(brief.rng.integers(-16, 17))
        box = stage.layout.room(2 * radius + 8, 2 * radius + 8, gap=20)
        centre_px = (along, box[1] + radius + 4) if word in ("leftmost", "rightmost") else (box[0] + radius + 4, along)
        made.append(stage.add(colour, figure, radius, at=centre_px))
    stage.distract(brief.dial.distractors - 2, avoid=tuple(c for c, _ in wanted))
    phrases = [thing.phrase for thing in made]
    options = tuple(sample(brief.rng, phrases, 4))
    return drafted(stage, made, {"most": word}, options)


def _size(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    wanted = pairs(brief.rng, stage.colours, 4)
    word, big = choose(brief.rng, ("largest", "smallest")), brief.glance()
    radii = (32, 40, 50, 63) if big else (16, 21, 27, 35)
    made = []
    for (colour, _), radius in zip(wanted, radii, strict=True):
        made.append(stage.add(colour, choose(brief.rng, ("circle", "square", "diamond")), radius, gap=18))
    stage.distract(brief.dial.distractors - 2, avoid=tuple(c for c, _ in wanted))
    options = tuple(sample(brief.rng, [thing.phrase for thing in made], 4))
    return drafted(stage, made, {"most": word}, options)


def _most(references: References, parameters: Parameters) -> str:
    rank = {
        "leftmost": lambda r: centre(box_of(r))[0],
        "rightmost": lambda r: -centre(box_of(r))[0],
        "topmost": lambda r: centre(box_of(r))[1],
        "bottommost": lambda r: -centre(box_of(r))[1],
        "largest": lambda r: -area(r),
        "smallest": area,
    }[text_of(parameters, "most")]
    found = [(rank(region(references, option)), option) for option in words_of(parameters, "options")]
    return min(found)[1]


def _count(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    colour, figure, big = stage.colours[0], choose(brief.rng, FIGURES), brief.glance()
    count = whole(brief.rng, 2, 4 if big else 7)
    made = group(brief, stage, [(colour, figure)] * count, big=big)
    for _ in range(2):
        stage.add(colour, choose(brief.rng, different(FIGURES, figure)), stage.radius(big=False), gap=26)
    stage.distract(brief.dial.distractors - 2, avoid=(colour,))
    near = [str(v) for v in sample(brief.rng, [v for v in range(max(count - 3, 1), count + 4) if v != count], 3)]
    return drafted(stage, made, {"target": f"{colour} {figure}"}, four(brief.rng, str(count), near))


def _how_many(references: References, parameters: Parameters) -> str:
    return str(counted(references, text_of(parameters, "target")))


def _colour(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    figure, colour, big = choose(brief.rng, FIGURES), stage.colours[0], brief.glance()
    target = stage.add(colour, figure, stage.radius(big=big))
    stage.maybe_hide(target)
    others = [c for c in stage.colours[1:4]]
    for other in others[: 1 + brief.dial.level // 2]:
        stage.add(other, choose(brief.rng, different(FIGURES, figure)), stage.radius(big=False))
    stage.distract(brief.dial.distractors - 2, avoid=(colour, *others), unlike=figure)
    parameters = {"figure": figure, "attribute": "colour"}
    return drafted(stage, [target], parameters, four(brief.rng, colour, [*others, *VIVID]))


def _colour_of(references: References, parameters: Parameters) -> str:
    figure = text_of(parameters, "figure")
    found = [r for r in references if r.footprint.kind == "mask" and r.footprint.label.endswith(f" {figure}")]
    if not found:
        raise Unanswerable(f"there is no {figure}")
    return str(found[0].properties["colour"])


def _panel(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    right = name(brief.rng)
    panel, text = stage.panel(stage.lone_colours[0], right, stage.text_px())
    stage.panel(stage.lone_colours[1], name(brief.rng), stage.text_px())
    stage.distract(brief.dial.distractors - 2, avoid=(panel.colour,))
    wrong = [misspelt(brief.rng, right) for _ in range(8)]
    parameters = {"target": panel.phrase, "colour": panel.colour}
    draft = drafted(stage, [panel], parameters, four(brief.rng, right, wrong))
    draft.evidence.append(text.name)
    return draft


def misspelt(rng: Generator, word: str) -> str:
    """A word that is one letter away: somebody who guesses will not tell them apart."""
    at = int(rng.integers(1, len(word)))
    letters = [c for c in "abdefghkmnoprstuvz" if c != word[at].lower()]
    return word[:at] + choose(rng, letters) + word[at + 1 :]


def _neighbour(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    wanted = pairs(brief.rng, stage.colours, 5)
    big = brief.glance()
    radius = 34 if big else min(stage.radius(big=False), 30)
    middle_px = (int(brief.rng.integers(190, 322)), int(brief.rng.integers(190, 322)))
    subject = stage.add(*wanted[0], radius, at=middle_px)
    made = []
    turns = sample(brief.rng, range(4), 4)
    for k, (pair, turn) in enumerate(zip(wanted[1:], turns, strict=True)):
        dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[turn]
        far = 92 if k == 0 else int(brief.rng.integers(138, 152))
        made.append(stage.add(*pair, radius, at=(middle_px[0] + dx * far, middle_px[1] + dy * far)))
    stage.distract(brief.dial.distractors - 3, avoid=tuple(c for c, _ in wanted))
    options = tuple(sample(brief.rng, [thing.phrase for thing in made], 4))
    return drafted(stage, [subject, *made], {"target": subject.phrase, "aspect": 1.0}, options)


def _closest(references: References, parameters: Parameters) -> str:
    here = box_of(region(references, text_of(parameters, "target")))
    found = [
        (apart(here, box_of(region(references, option)), aspect(parameters)), option)
        for option in words_of(parameters, "options")
    ]
    return min(found)[1]


def _pattern(brief: Brief) -> Draft:
    stage = Stage(brief, PICTURE)
    pattern = choose(brief.rng, ("striped", "checkered"))
    hues = steady(stage)[:4]
    made = []
    for k, colour in enumerate(hues):
        style = pattern if k == 0 else "plain"
        figure = choose(brief.rng, ("circle", "diamond"))
        made.append(
            stage.add(colour, figure, 52 - 2 * brief.dial.level, pattern=style, paint_rgb=PATTERNED[colour], turn=0.0)
        )
    stage.distract(brief.dial.distractors // 2, avoid=tuple(hues))
    options = tuple(sample(brief.rng, [thing.phrase for thing in made], 4))
    return drafted(stage, made, {"pattern": pattern, "attribute": "texture"}, options)


def _patterned(references: References, parameters: Parameters) -> str:
    wanted = text_of(parameters, "pattern")
    fitting = [o for o in words_of(parameters, "options") if region(references, o).properties["texture"] == wanted]
    if len(fitting) != 1:
        raise Unanswerable(f"{len(fitting)} options are {wanted}")
    return fitting[0]


def _pair_more(brief: Brief) -> Draft:
    first, second, shared = two_stages(brief, Size(448, 448))
    colour, figure = shared[0], choose(brief.rng, FIGURES)
    answer, big = int(brief.rng.integers(4)), brief.glance()
    low = whole(brief.rng, 1, 3)
    more = low + whole(brief.rng, 1, 2)
    counts = {0: (more, low), 1: (low, more), 2: (low, low), 3: (0, 0)}[answer]
    evidence = []
    for stage, count in zip((first, second), counts, strict=True):
        made = group(brief, stage, [(colour, figure)] * count, big=big)
        evidence += [stage.named(thing) for thing in made]
        if brief.chance(0.7) or not count:
            stage.add(colour, choose(brief.rng, different(FIGURES, figure)), stage.radius(big=False), gap=26)
        stage.distract(brief.dial.distractors - 2, avoid=(colour,))
    options = tuple(sample(brief.rng, ("Image_0", "Image_1", "as many in both", "none in either"), 4))
    draft = both(
        first, second, evidence, {"target": f"{colour} {figure}", "plural": plural(colour, figure), "options": options}
    )
    draft.options = options
    return draft


def _more(references: References, parameters: Parameters) -> str:
    first, second = (counted(references, text_of(parameters, "target"), f"Image_{k}") for k in (0, 1))
    if first == second:
        return "as many in both" if first else "none in either"
    return "Image_0" if first > second else "Image_1"


TEMPLATES = (
    Template(
        "choice.present", "choice",
        (
            "Which of these is in the picture?",
            "One of the following can be seen in the picture. Which one?",
            "Which thing does the picture show?",
            "What is there to be seen?",
        ),
        _present, _there, "choice", (EACH_OPTION,), doc="the option whose call succeeds",
    ),
    Template(
        "choice.absent", "choice",
        (
            "Which of these is not in the picture?",
            "All but one of the following are in the picture. Which one is missing?",
            "Which thing does the picture not show?",
            "What is missing from the picture?",
        ),
        _absent, _there, "choice", (EACH_OPTION,), doc="the option whose call fails",
    ),
    Template(
        "choice.extreme", "choice",
        (
            "Which of these is the {most}?",
            "Among the following, which thing is the {most} one?",
            "Of these four, which is the {most} in the picture?",
            "Compare the places of the four: which is {most}?",
        ),
        _extreme, _most, "choice", (EACH_OPTION,), doc="compare the centres of the boxes",
    ),
    Template(
        "choice.size", "choice",
        (
            "Which of these is the {most}?",
            "Compare the sizes of the four: which is the {most}?",
            "Which of the following is the {most} in the picture?",
            "Of these four things, which is the {most} by area?",
        ),
        _size, _most, "choice", (EACH_OPTION,), doc="compare the areas of the regions",
    ),
    Template(
        "choice.count", "choice",
        (
            "How many of this are in the picture: {target}?",
            "Count every {target}. How many are there?",
            "What is the number of things that are a {target}?",
            "How often does the picture show a {target}?",
        ),
        _count, _how_many, "choice",
        (ChainStep(tool="SEG", args={"target": "{target}", "limit": 32}),), doc="the number of regions",
    ),
    Template(
        "choice.colour", "choice",
        (
            "What colour is the {figure}?",
            "The picture holds one {figure}. Which colour does it have?",
            "Name the colour of the {figure}.",
            "In which colour is the {figure} painted?",
        ),
        _colour, _colour_of, "choice",
        (ChainStep(tool="SEG", args={"target": "{options[i]} {figure}"}, note="once for each option"),),
        doc="the colour whose call succeeds",
    ),
    Template(
        "choice.panel", "choice",
        (
            "What is written on the {colour} panel?",
            "Which of these words stands on the {colour} panel?",
            "Read the {colour} panel. What does it say, exactly?",
            "How is the word on the {colour} panel spelt?",
        ),
        _panel, text_on, "choice",
        (
            LOOK,
            ChainStep(tool="ZOOM", args={"box": "$1.box"}),
            ChainStep(tool="OCR", args={"media": "$2.view"}),
        ),
        doc="the option nearest to the text that was read",
    ),
    Template(
        "choice.neighbour", "choice",
        (
            "Which of these is nearest to the {target}?",
            "What is the closest neighbour of the {target} among these?",
            "Starting at the {target}, which of the four is the shortest way off?",
            "Which thing lies closest to the {target}?",
        ),
        _neighbour, _closest, "choice",
        (LOOK, EACH_OPTION), doc="compare the distances of the centres",
    ),
    Template(
        "choice.pattern", "choice",
        (
            "Which of these is {pattern}?",
            "One of the four things has a {pattern} pattern. Which?",
            "Look closely: which thing is {pattern}?",
            "Which of the following is not plain but {pattern}?",
        ),
        _pattern, _patterned, "choice",
        (EACH_OPTION, ChainStep(tool="PROP", args={"mask": "$i.mask", "attributes": ["texture"]}, note="for each")),
        doc="the option whose texture fits",
    ),
    Template(
        "choice.pair_more", "choice",
        (
            "Which picture has more {plural}?",
            "Compare Image_0 and Image_1: where are there more {plural}?",
            "In which of the two pictures are {plural} more frequent?",
            "Count the {plural} in both pictures. Which has more?",
        ),
        _pair_more, _more, "choice",
        (
            ChainStep(tool="SEG", args={"target": "{target}", "media": "Image_0"}, note="a failure counts none"),
            ChainStep(tool="SEG", args={"target": "{target}", "media": "Image_1"}),
        ),
        doc="compare the numbers of regions",
    ),
)  # fmt: skip
