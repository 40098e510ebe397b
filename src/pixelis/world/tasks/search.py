"""search (V*): a small thing in a large picture: its text, appearance, place, and which picture contains it."""

from __future__ import annotations

from pixelis.core.geometry import Size
from pixelis.world.figure_outlines import ICON_NAMES, distinct_figures
from pixelis.world.palette import VIVID
from pixelis.world.programs import Facts, centre, get_centre, line_text, locate_field, nearest, require_first
from pixelis.world.stage import PixelRect, Stage, Thing
from pixelis.world.tasks.staging import (
    COMMON_FIGURES,
    DISTINCT_FIGURES,
    PATTERN_PAINTS,
    make_large_stage,
    make_stage_pair,
    name_presence,
    pattern_colours,
    sample_small_radius,
    solve_text_on,
)
from pixelis.world.template import Brief, Evidence, ItemDraft, load_templates, make_draft
from pixelis.world.vocabulary import choose, choose_names, make_code, sample


def _compose_panel_text(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    texts = choose_names(brief.rng, 4) if brief.bernoulli(0.7) else [make_code(brief.rng) for _ in range(4)]
    panels = [
        stage.add_panel(colour, text, stage.sample_text_px())
        for colour, text in zip(stage.standalone_colours[:3], texts, strict=False)
    ]
    target, text = panels[0]
    stage.add_distractors(brief.difficulty.distractors, avoid=(target.colour,))
    return make_draft(stage, [target, text], {"target": target.phrase, "colour": target.colour})


def _compose_tag_text(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    texts = [make_code(brief.rng) for _ in range(3)] if brief.bernoulli(0.6) else choose_names(brief.rng, 3)
    hues = stage.standalone_colours[:3]
    figures = sample(brief.rng, ICON_NAMES, 3)
    for colour, figure, text in zip(hues, figures, texts, strict=True):
        radius, px = sample_small_radius(stage, big=False), stage.sample_text_px()
        box = stage.layout.find_room(2 * radius + 8 * px, 2 * radius + 4 * px, gap=2 * px)
        at = ((box[0] + box[2]) // 2, min(box[1] + radius, stage.size.height - 4 * px))
        thing = stage.add(colour, figure, radius, at=at)
        stage.add_tag(text, px, thing)
        stage.layout.reserve(box)
    stage.add_distractors(brief.difficulty.distractors, avoid=(hues[0],))
    target = stage.things[0]
    return make_draft(stage, [target, stage.texts[0]], {"target": target.phrase})


def _solve_tag_text(facts: Facts) -> str:
    x0, _, x1, y1 = facts.box("target")

    def distance_below(r: object) -> float:
        x, y = get_centre(r)  # type: ignore[arg-type]
        return abs(x - (x0 + x1) / 2) + abs(y - y1) + (10.0 if y < y1 else 0.0)

    return line_text(nearest(facts.lines(), distance_below))


def _compose_ink_colour(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    words = choose_names(brief.rng, 3)
    paper = "white" if brief.bernoulli(0.5) else "black"
    illegible = ("yellow", "cyan") if paper == "white" else ("blue", "purple")
    hues = sample(brief.rng, [c for c in VIVID if c not in illegible], 3)
    for hue, word in zip(hues, words, strict=True):
        stage.add_coloured_text(paper, hue, word, round(stage.sample_text_px() * 1.3))
    stage.add_distractors(brief.difficulty.distractors)
    return make_draft(stage, stage.texts[:1], {"word": words[0], "attribute": "colour"})


def _solve_ink_colour(facts: Facts) -> str:
    return str(facts.line(facts.text("word")).properties["colour"])


def _compose_shape(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    radius, colour = sample_small_radius(stage, big=brief.sample_is_large()), stage.standalone_colours[0]
    figures = DISTINCT_FIGURES[: 8 if radius < 24 else 10 if radius < 28 else 11]
    target = stage.add(colour, choose(brief.rng, figures), radius)
    stage.maybe_occlude(target)
    stage.add_distractors(brief.difficulty.distractors, avoid=(colour,))
    parameters = {"target": f"{colour} thing", "colour": colour, "attribute": "shape"}
    return make_draft(stage, [target], parameters)


def _compose_texture(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    pattern = choose(brief.rng, ("plain", "striped", "checkered"))
    figure, colour = choose(brief.rng, ("circle", "diamond")), pattern_colours(stage)[0]
    radius = max(round(sample_small_radius(stage, big=False) * 1.4), 42)
    target = stage.add(colour, figure, radius, pattern=pattern, paint_rgb=PATTERN_PAINTS[colour], turn=0.0)
    stage.add_distractors(brief.difficulty.distractors, avoid=(colour,))
    return make_draft(stage, [target], {"target": f"{colour} thing", "colour": colour, "attribute": "texture"})


def _compose_orientation(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    word = choose(brief.rng, ("horizontal", "vertical", "rising", "falling"))
    turn = {"horizontal": 0.0, "vertical": 90.0, "rising": -45.0, "falling": 45.0}[word]
    turn += float(brief.rng.integers(-9, 10))
    colour = stage.colours[0]
    target = stage.add(colour, "bar", round(sample_small_radius(stage, big=False) * 1.7), turn=turn)
    target.properties["orientation"] = word
    stage.add_distractors(brief.difficulty.distractors, avoid=(colour,))
    parameters = {"target": f"{colour} bar", "colour": colour, "attribute": "orientation"}
    return make_draft(stage, [target], parameters)


def _solve_property(facts: Facts) -> str:
    target = facts.text("target")
    matches = facts.regions(target) or [
        r
        for r in facts.references
        if r.footprint.kind == "mask" and r.footprint.label.split(" ")[0] == target.split(" ")[0]
    ]
    return str(require_first(matches, f"there is no {target}").properties[facts.text("attribute")])


def _compose_relation(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    word, big = choose(brief.rng, ("left", "right", "above", "below")), brief.sample_is_large()
    across, down = {"left": (-1, 0), "right": (1, 0), "above": (0, -1), "below": (0, 1)}[word]
    width, height = stage.size
    distance = brief.rng.uniform(0.42, 0.6)
    middle_x = brief.rng.uniform(0.3, 0.7) if across == 0 else 0.5
    middle_y = brief.rng.uniform(0.3, 0.7) if down == 0 else 0.5
    figures = sample(brief.rng, COMMON_FIGURES, 2)
    things = []
    for sign, colour, figure in zip((0.5, -0.5), stage.colours, figures, strict=False):
        drift = brief.rng.uniform(-0.06, 0.06)
        x = middle_x + across * distance * sign + (drift if across == 0 else 0)
        y = middle_y + down * distance * sign + (drift if down == 0 else 0)
        at = (round(x * width), round(y * height))
        things.append(stage.add(colour, figure, sample_small_radius(stage, big=big), at=at))
    first, second = things
    stage.maybe_occlude(first)
    stage.add_distractors(brief.difficulty.distractors, avoid=(first.colour, second.colour))
    parameters = {"a": first.phrase, "b": second.phrase, "aspect": height / width}
    return make_draft(stage, [first, second], parameters)


def _solve_relation(facts: Facts) -> str:
    (ax, ay), (bx, by) = centre(facts.box("a")), centre(facts.box("b"))
    dx, dy = ax - bx, (ay - by) * facts.aspect
    if abs(dx) >= abs(dy):
        return "left" if dx < 0 else "right"
    return "above" if dy < 0 else "below"


def field_box(stage: Stage, index: int) -> PixelRect:
    """One of nine fields, without a margin near the next."""
    width, height = stage.size
    column, row = index % 3, index // 3
    rim_x, rim_y = round(width * 0.03), round(height * 0.03)
    left, right = column * width // 3 + rim_x, (column + 1) * width // 3 - rim_x
    return left, row * height // 3 + rim_y, right, (row + 1) * height // 3 - rim_y


def _compose_field(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    colour, big = stage.colours[0], brief.sample_is_large()
    radius = sample_small_radius(stage, big=False) * (2 if big else 1)
    left, top, right, bottom = field_box(stage, int(brief.rng.integers(9)))
    at = (int(brief.rng.integers(left, right + 1)), int(brief.rng.integers(top, bottom + 1)))
    x, y = (min(max(p, radius + 4), length - radius - 4) for p, length in zip(at, stage.size, strict=True))
    target = stage.add(colour, choose(brief.rng, DISTINCT_FIGURES[:8]), radius, at=(x, y))
    stage.maybe_occlude(target)
    stage.add_distractors(brief.difficulty.distractors, avoid=(colour,))
    return make_draft(stage, [target], {"target": target.phrase})


def _solve_field(facts: Facts) -> str:
    return locate_field(facts.box("target"))


def _compose_pair_presence(brief: Brief) -> ItemDraft:
    first, second, shared = make_stage_pair(brief, Size(640, 480))
    answer, big = int(brief.rng.integers(4)), brief.sample_is_large()
    colour, figure = shared[0], choose(brief.rng, COMMON_FIGURES)
    evidence: list[Thing] = []
    for stage, is_present in ((first, answer in (0, 2)), (second, answer in (1, 2))):
        other = choose(brief.rng, distinct_figures(COMMON_FIGURES, figure))
        if is_present:
            evidence.append(stage.add(colour, figure, sample_small_radius(stage, big=big)))
        elif brief.bernoulli(0.7):
            stage.add(colour, other, sample_small_radius(stage, big=big))
        stage.add(choose(brief.rng, shared[1:]), figure, sample_small_radius(stage, big=False))
        stage.add_distractors(brief.difficulty.distractors - 1, avoid=(colour,))
    return make_draft((first, second), evidence, {"target": f"{colour} {figure}"})


def _solve_pair_presence(facts: Facts) -> str:
    is_present = [bool(facts.regions(facts.text("target"), f"Image_{k}")) for k in (0, 1)]
    return name_presence(("Image_0", "Image_1"), is_present)


def _compose_pair_text(brief: Brief) -> ItemDraft:
    first, second, shared = make_stage_pair(brief, Size(640, 480))
    shared = [c for c in shared if c != "orange"]
    target_index = int(brief.rng.integers(2))
    words = choose_names(brief.rng, 4)
    evidence: list[Evidence] = []
    for k, stage in enumerate((first, second)):
        panel, text = stage.add_panel(shared[0], words[2 * k], stage.sample_text_px())
        stage.add_panel(shared[1], words[2 * k + 1], stage.sample_text_px())
        stage.add_distractors(brief.difficulty.distractors - 1, avoid=(shared[0],))
        if k == target_index:
            evidence = [panel, text]
    parameters = {"target": f"{shared[0]} panel", "colour": shared[0], "media": f"Image_{target_index}"}
    return make_draft((first, second), evidence, parameters)


TEMPLATES = load_templates(
    "search",
    panel_text=(_compose_panel_text, solve_text_on),
    tag_text=(_compose_tag_text, _solve_tag_text),
    ink_colour=(_compose_ink_colour, _solve_ink_colour),
    shape=(_compose_shape, _solve_property),
    texture=(_compose_texture, _solve_property),
    orientation=(_compose_orientation, _solve_property),
    relation=(_compose_relation, _solve_relation),
    field=(_compose_field, _solve_field),
    pair_presence=(_compose_pair_presence, _solve_pair_presence),
    pair_text=(_compose_pair_text, solve_text_on),
)
