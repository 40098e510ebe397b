"""search (V*): a small thing in a large picture: what it says, looks like, where it is, and in which picture."""

from __future__ import annotations

from pixelis.geometry import Size
from pixelis.world.figures import ICON_NAMES, different
from pixelis.world.palette import VIVID
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    box_of,
    centre,
    field_of,
    nearest,
    region,
    regions,
    says,
    spans,
    text_of,
)
from pixelis.world.stage import PixelRect, Stage
from pixelis.world.tasks.staging import (
    CLEAR,
    FIGURES,
    LOOK,
    PATTERNED,
    both,
    drafted,
    large,
    small_radius,
    steady,
    text_on,
    two_stages,
)
from pixelis.world.template import Brief, ChainStep, Draft, Template
from pixelis.world.vocabulary import choose, code, names, sample


def _panel_text(brief: Brief) -> Draft:
    stage = large(brief)
    texts = names(brief.rng, 4) if brief.chance(0.7) else [code(brief.rng) for _ in range(4)]
    made = [
        stage.panel(colour, text, stage.text_px()) for colour, text in zip(stage.lone_colours[:3], texts, strict=False)
    ]
    target, text = made[0]
    stage.distract(brief.dial.distractors, avoid=(target.colour,))
    return drafted(stage, [stage.named(target), text.name], {"target": target.phrase, "colour": target.colour})


def _tag_text(brief: Brief) -> Draft:
    stage = large(brief)
    texts = [code(brief.rng) for _ in range(3)] if brief.chance(0.6) else names(brief.rng, 3)
    hues = stage.lone_colours[:3]
    figures = sample(brief.rng, ICON_NAMES, 3)
    size = stage.size
    for colour, figure, text in zip(hues, figures, texts, strict=True):
        radius, px = small_radius(stage, big=False), stage.text_px()
        box = stage.layout.room(2 * radius + 8 * px, 2 * radius + 4 * px, gap=2 * px)
        thing = stage.add(
            colour, figure, radius, at=((box[0] + box[2]) // 2, min(box[1] + radius, size.height - 4 * px))
        )
        stage.label(text, px, thing)
        stage.layout.take(box)
    stage.distract(brief.dial.distractors, avoid=(hues[0],))
    target = stage.things[0]
    return drafted(stage, [stage.named(target), stage.texts[0].name], {"target": target.phrase})


def _text_under(references: References, parameters: Parameters) -> str:
    x0, _, x1, y1 = box_of(region(references, text_of(parameters, "target")))

    def below(r: object) -> float:
        x, y = centre(box_of(r))  # type: ignore[arg-type]
        return abs(x - (x0 + x1) / 2) + abs(y - y1) + (10.0 if y < y1 else 0.0)

    return says(nearest(spans(references), below))


def _ink_colour(brief: Brief) -> Draft:
    stage = large(brief)
    words = names(brief.rng, 3)
    paper = "white" if brief.chance(0.5) else "black"
    hues = sample(
        brief.rng, [c for c in VIVID if c not in (("yellow", "cyan") if paper == "white" else ("blue", "purple"))], 3
    )
    made = [stage.inked(paper, hue, word, round(stage.text_px() * 1.3)) for hue, word in zip(hues, words, strict=True)]
    stage.distract(brief.dial.distractors)
    return drafted(stage, [made[0].name], {"word": words[0], "attribute": "colour"})


def _ink_of(references: References, parameters: Parameters) -> str:
    for r in spans(references):
        if says(r).casefold() == text_of(parameters, "word").casefold():
            return str(r.properties["colour"])
    raise Unanswerable("the word is not there")


def _shape(brief: Brief) -> Draft:
    stage = large(brief)
    radius, colour = small_radius(stage, big=brief.glance()), stage.lone_colours[0]
    target = stage.add(colour, choose(brief.rng, CLEAR[: 8 if radius < 24 else 10 if radius < 28 else 11]), radius)
    stage.maybe_hide(target)
    stage.distract(brief.dial.distractors, avoid=(colour,))
    parameters = {"target": f"{colour} thing", "colour": colour, "attribute": "shape"}
    return drafted(stage, [stage.named(target)], parameters)


def _texture(brief: Brief) -> Draft:
    stage = large(brief)
    pattern = choose(brief.rng, ("plain", "striped", "checkered"))
    figure, colour = choose(brief.rng, ("circle", "diamond")), steady(stage)[0]
    radius = max(round(small_radius(stage, big=False) * 1.4), 42)
    target = stage.add(colour, figure, radius, pattern=pattern, paint_rgb=PATTERNED[colour], turn=0.0)
    stage.distract(brief.dial.distractors, avoid=(colour,))
    return drafted(
        stage, [stage.named(target)], {"target": f"{colour} thing", "colour": colour, "attribute": "texture"}
    )


def _orientation(brief: Brief) -> Draft:
    stage = large(brief)
    word = choose(brief.rng, ("horizontal", "vertical", "rising", "falling"))
    turn = {"horizontal": 0.0, "vertical": 90.0, "rising": -45.0, "falling": 45.0}[word] + float(
        brief.rng.integers(-9, 10)
    )
    colour = stage.colours[0]
    target = stage.add(colour, "bar", round(small_radius(stage, big=False) * 1.7), turn=turn)
    target.properties["orientation"] = word
    stage.distract(brief.dial.distractors, avoid=(colour,))
    parameters = {"target": f"{colour} bar", "colour": colour, "attribute": "orientation"}
    return drafted(stage, [stage.named(target)], parameters)


def _property(references: References, parameters: Parameters) -> str:
    target = text_of(parameters, "target")
    found = regions(references, target) or [
        r for r in references if r.footprint.kind == "mask" and r.footprint.label.split(" ")[0] == target.split(" ")[0]
    ]
    if not found:
        raise Unanswerable(f"there is no {target}")
    return str(found[0].properties[text_of(parameters, "attribute")])


def _relation(brief: Brief) -> Draft:
    stage = large(brief)
    word, big = choose(brief.rng, ("left", "right", "above", "below")), brief.glance()
    across, down = {"left": (-1, 0), "right": (1, 0), "above": (0, -1), "below": (0, 1)}[word]
    width, height = stage.size
    far = brief.rng.uniform(0.42, 0.6)
    middle_x = brief.rng.uniform(0.3, 0.7) if across == 0 else 0.5
    middle_y = brief.rng.uniform(0.3, 0.7) if down == 0 else 0.5
    figures = sample(brief.rng, FIGURES, 2)
    things = []
    for sign, colour, figure in zip((0.5, -0.5), stage.colours, figures, strict=False):
        drift = brief.rng.uniform(-0.06, 0.06)
        x = middle_x + across * far * sign + (drift if across == 0 else 0)
        y = middle_y + down * far * sign + (drift if down == 0 else 0)
        things.append(stage.add(colour, figure, small_radius(stage, big=big), at=(round(x * width), round(y * height))))
    first, second = things
    stage.maybe_hide(first)
    stage.distract(brief.dial.distractors, avoid=(first.colour, second.colour))
    parameters = {"a": first.phrase, "b": second.phrase, "aspect": height / width}
    return drafted(stage, [stage.named(first), stage.named(second)], parameters)


def _side(references: References, parameters: Parameters) -> str:
    ax, ay = centre(box_of(region(references, text_of(parameters, "a"))))
    bx, by = centre(box_of(region(references, text_of(parameters, "b"))))
    dx, dy = ax - bx, (ay - by) * float(str(parameters["aspect"]))
    if abs(dx) >= abs(dy):
        return "left" if dx < 0 else "right"
    return "above" if dy < 0 else "below"


def field_box(stage: Stage, index: int) -> PixelRect:
    """One of nine fields, without a rim near the next."""
    width, height = stage.size
    column, row = index % 3, index // 3
    rim_x, rim_y = round(width * 0.03), round(height * 0.03)
    return (
        column * width // 3 + rim_x,
        row * height // 3 + rim_y,
        (column + 1) * width // 3 - rim_x,
        (row + 1) * height // 3 - rim_y,
    )


def _field(brief: Brief) -> Draft:
    stage = large(brief)
    colour, big = stage.colours[0], brief.glance()
    radius = small_radius(stage, big=False) * (2 if big else 1)
    left, top, right, bottom = field_box(stage, int(brief.rng.integers(9)))
    at = (int(brief.rng.integers(left, right + 1)), int(brief.rng.integers(top, bottom + 1)))
    inside = (
        min(max(at[0], radius + 4), stage.size.width - radius - 4),
        min(max(at[1], radius + 4), stage.size.height - radius - 4),
    )
    target = stage.add(colour, choose(brief.rng, CLEAR[:8]), radius, at=inside)
    stage.maybe_hide(target)
    stage.distract(brief.dial.distractors, avoid=(colour,))
    return drafted(stage, [stage.named(target)], {"target": target.phrase})


def _field_of(references: References, parameters: Parameters) -> str:
    return field_of(box_of(region(references, text_of(parameters, "target"))))


def _pair_presence(brief: Brief) -> Draft:
    first, second, shared = two_stages(brief, Size(640, 480))
    answer, big = int(brief.rng.integers(4)), brief.glance()
    colour, figure = shared[0], choose(brief.rng, FIGURES)
    evidence: list[str] = []
    for stage, shown in ((first, answer in (0, 2)), (second, answer in (1, 2))):
        other = choose(brief.rng, different(FIGURES, figure))
        if shown:
            made = stage.add(colour, figure, small_radius(stage, big=big))
            evidence.append(stage.named(made))
        elif brief.chance(0.7):
            stage.add(colour, other, small_radius(stage, big=big))
        stage.add(choose(brief.rng, shared[1:]), figure, small_radius(stage, big=False))
        stage.distract(brief.dial.distractors - 1, avoid=(colour,))
    return both(first, second, evidence, {"target": f"{colour} {figure}"})


def _which_picture(references: References, parameters: Parameters) -> str:
    shown = [bool(regions(references, text_of(parameters, "target"), f"Image_{k}")) for k in (0, 1)]
    return {(True, False): "Image_0", (False, True): "Image_1", (True, True): "both"}.get(
        (shown[0], shown[1]), "neither"
    )


def _pair_text(brief: Brief) -> Draft:
    first, second, shared = two_stages(brief, Size(640, 480))
    shared = [c for c in shared if c != "orange"]
    asked = int(brief.rng.integers(2))
    words = names(brief.rng, 4)
    evidence = []
    for k, stage in enumerate((first, second)):
        panel, text = stage.panel(shared[0], words[2 * k], stage.text_px())
        stage.panel(shared[1], words[2 * k + 1], stage.text_px())
        stage.distract(brief.dial.distractors - 1, avoid=(shared[0],))
        if k == asked:
            evidence = [stage.named(panel), text.name]
    parameters = {"target": f"{shared[0]} panel", "colour": shared[0], "media": f"Image_{asked}"}
    return both(first, second, evidence, parameters)


TEMPLATES = (
    Template(
        "search.panel_text", "search",
        (
            "What is written on the {colour} panel?",
            "There is a small {colour} panel in the picture. What does it say?",
            "Read the {colour} panel.",
            "Which word or code stands on the {colour} panel?",
            "Find the {colour} panel and tell me its text.",
        ),
        _panel_text, text_on, "exact",
        (LOOK, ChainStep(tool="ZOOM", args={"box": "$1.box"}), ChainStep(tool="OCR", args={"media": "$2.view"})),
        doc="the text that OCR read",
    ),
    Template(
        "search.tag_text", "search",
        (
            "What does the tag under the {target} say?",
            "Which text stands just below the {target}?",
            "Read the tag of the {target}.",
            "The {target} has a tag. What is on it?",
        ),
        _tag_text, _text_under, "exact",
        (
            LOOK,
            ChainStep(tool="ZOOM", args={"box": "$1.box", "scale": 0.3}, note="step back until the tag is in view"),
            ChainStep(tool="OCR", args={"media": "$2.view"}),
        ),
        doc="the line that begins nearest below the box of the first step",
    ),
    Template(
        "search.ink_colour", "search",
        (
            'In which colour is the word "{word}" written?',
            'What is the colour of the letters of "{word}"?',
            'Somewhere it says "{word}". What colour are the letters?',
            'Which colour has the writing "{word}"?',
        ),
        _ink_colour, _ink_of, "exact",
        (
            ChainStep(tool="OCR", note="find the line that says {word}"),
            ChainStep(tool="PROP", args={"box": "$1.box[k]", "attributes": ["colour"]}),
        ),
        doc="the colour that PROP names",
    ),
    Template(
        "search.shape", "search",
        (
            "What shape is the only {colour} thing?",
            "One thing in the picture is {colour}. Which shape does it have?",
            "Name the shape of the {colour} object.",
            "The {colour} thing: what figure is it?",
        ),
        _shape, _property, "exact",
        (LOOK, ChainStep(tool="PROP", args={"mask": "$1.mask", "attributes": ["shape"]})),
        doc="the shape that PROP names",
    ),
    Template(
        "search.texture", "search",
        (
            "Is the {colour} thing plain, striped or checkered?",
            "Which pattern is on the {colour} thing: plain, striped or checkered?",
            "Look closely at the {colour} object: plain, striped or checkered?",
            "What is the surface of the {colour} thing like, plain, striped or checkered?",
        ),
        _texture, _property, "exact",
        (
            LOOK,
            ChainStep(tool="ZOOM", args={"box": "$1.box"}),
            ChainStep(tool="PROP", args={"mask": "$1.mask", "attributes": ["texture"]}),
        ),
        doc="the texture that PROP names",
    ),
    Template(
        "search.orientation", "search",
        (
            "How does the {colour} bar lie: horizontal, vertical, rising or falling (seen from left to right)?",
            "Is the {colour} bar horizontal, vertical, rising or falling to the right?",
            "Which way does the {colour} bar point: horizontal, vertical, rising or falling?",
            "Tell me the orientation of the {colour} bar: horizontal, vertical, rising or falling.",
        ),
        _orientation, _property, "exact",
        (LOOK, ChainStep(tool="PROP", args={"mask": "$1.mask", "attributes": ["orientation"]})),
        doc="the orientation that PROP names",
    ),
    Template(
        "search.relation", "search",
        (
            "Seen from the {b}, where is the {a}: left, right, above or below?",
            "On which side of the {b} is the {a}: left, right, above or below?",
            "Is the {a} to the left of, to the right of, above or below the {b}? Answer left, right, above or below.",
            "Where does the {a} lie with respect to the {b}: left, right, above or below?",
        ),
        _relation, _side, "exact",
        (ChainStep(tool="SEG", args={"target": "{a}"}), ChainStep(tool="SEG", args={"target": "{b}"})),
        doc="the larger of the two differences between the centres, in pixels",
    ),
    Template(
        "search.field", "search",
        (
            "In which of nine parts of the picture (top left, top, top right, left, centre, …) is the {target}?",
            "Where in the picture is the {target}? Answer like: top left, top, centre, bottom right.",
            "Divide the picture into three by three fields. In which one (top left … bottom right) is the {target}?",
            "Tell me the part of the frame, such as top right or centre, that holds the {target}.",
        ),
        _field, _field_of, "exact",
        (LOOK, ChainStep(tool="PROP", args={"mask": "$1.mask", "attributes": ["position"]})),
        doc="the position that PROP names",
    ),
    Template(
        "search.pair_presence", "search",
        (
            "Which picture shows a {target}: Image_0, Image_1, both or neither?",
            "Where is there a {target}: in Image_0, in Image_1, in both or in neither?",
            "Look for a {target} in the two pictures. Answer Image_0, Image_1, both or neither.",
            "Image_0, Image_1, both or neither: which has a {target}?",
        ),
        _pair_presence, _which_picture, "exact",
        (
            ChainStep(tool="SEG", args={"target": "{target}", "media": "Image_0"}, note="a failure means: not there"),
            ChainStep(tool="SEG", args={"target": "{target}", "media": "Image_1"}),
        ),
        doc="which of the two calls succeeded",
    ),
    Template(
        "search.pair_text", "search",
        (
            "What does the {colour} panel in {media} say?",
            "Both pictures have a {colour} panel. What is written on the one in {media}?",
            "Read the {colour} panel of {media}.",
            "In {media}, which text is on the {colour} panel?",
        ),
        _pair_text, text_on, "exact",
        (
            ChainStep(tool="SEG", args={"target": "{target}", "media": "{media}"}),
            ChainStep(tool="ZOOM", args={"box": "$1.box", "media": "{media}"}),
            ChainStep(tool="OCR", args={"media": "$2.view"}),
        ),
        doc="the text that OCR read",
    ),
)  # fmt: skip
