"""search (V*): a small thing in a large picture: its text, appearance, place, and which picture contains it."""

from __future__ import annotations

from pixelis.core.geometry import Size
from pixelis.world.figure_outlines import ICON_NAMES, distinct_figures
from pixelis.world.palette import VIVID
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    centre,
    find_lines,
    find_region,
    find_regions,
    get_box,
    get_line_text,
    get_text,
    locate_field,
    nearest,
)
from pixelis.world.stage import PixelRect, Stage, Thing
from pixelis.world.tasks.staging import (
    COMMON_FIGURES,
    DISTINCT_FIGURES,
    PATTERN_PAINTS,
    make_large_stage,
    make_stage_pair,
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
    size = stage.size
    for colour, figure, text in zip(hues, figures, texts, strict=True):
        radius, px = sample_small_radius(stage, big=False), stage.sample_text_px()
        box = stage.layout.find_room(2 * radius + 8 * px, 2 * radius + 4 * px, gap=2 * px)
        thing = stage.add(
            colour, figure, radius, at=((box[0] + box[2]) // 2, min(box[1] + radius, size.height - 4 * px))
        )
        stage.add_tag(text, px, thing)
        stage.layout.reserve(box)
    stage.add_distractors(brief.difficulty.distractors, avoid=(hues[0],))
    target = stage.things[0]
    return make_draft(stage, [target, stage.texts[0]], {"target": target.phrase})


def _solve_tag_text(references: References, parameters: Parameters) -> str:
    x0, _, x1, y1 = get_box(find_region(references, get_text(parameters, "target")))

    def distance_below(r: object) -> float:
        x, y = centre(get_box(r))  # type: ignore[arg-type]
        return abs(x - (x0 + x1) / 2) + abs(y - y1) + (10.0 if y < y1 else 0.0)

    return get_line_text(nearest(find_lines(references), distance_below))


def _compose_ink_colour(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    words = choose_names(brief.rng, 3)
    paper = "white" if brief.bernoulli(0.5) else "black"
    hues = sample(
        brief.rng, [c for c in VIVID if c not in (("yellow", "cyan") if paper == "white" else ("blue", "purple"))], 3
    )
    lines = [
        stage.add_coloured_text(paper, hue, word, round(stage.sample_text_px() * 1.3))
        for hue, word in zip(hues, words, strict=True)
    ]
    stage.add_distractors(brief.difficulty.distractors)
    return make_draft(stage, lines[:1], {"word": words[0], "attribute": "colour"})


def _solve_ink_colour(references: References, parameters: Parameters) -> str:
    for r in find_lines(references):
        if get_line_text(r).casefold() == get_text(parameters, "word").casefold():
            return str(r.properties["colour"])
    raise Unanswerable("the word is not there")


def _compose_shape(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    radius, colour = sample_small_radius(stage, big=brief.sample_is_large()), stage.standalone_colours[0]
    target = stage.add(
        colour, choose(brief.rng, DISTINCT_FIGURES[: 8 if radius < 24 else 10 if radius < 28 else 11]), radius
    )
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
    turn = {"horizontal": 0.0, "vertical": 90.0, "rising": -45.0, "falling": 45.0}[word] + float(
        brief.rng.integers(-9, 10)
    )
    colour = stage.colours[0]
    target = stage.add(colour, "bar", round(sample_small_radius(stage, big=False) * 1.7), turn=turn)
    target.properties["orientation"] = word
    stage.add_distractors(brief.difficulty.distractors, avoid=(colour,))
    parameters = {"target": f"{colour} bar", "colour": colour, "attribute": "orientation"}
    return make_draft(stage, [target], parameters)


def _solve_property(references: References, parameters: Parameters) -> str:
    target = get_text(parameters, "target")
    matches = find_regions(references, target) or [
        r for r in references if r.footprint.kind == "mask" and r.footprint.label.split(" ")[0] == target.split(" ")[0]
    ]
    if not matches:
        raise Unanswerable(f"there is no {target}")
    return str(matches[0].properties[get_text(parameters, "attribute")])


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
        things.append(
            stage.add(colour, figure, sample_small_radius(stage, big=big), at=(round(x * width), round(y * height)))
        )
    first, second = things
    stage.maybe_occlude(first)
    stage.add_distractors(brief.difficulty.distractors, avoid=(first.colour, second.colour))
    parameters = {"a": first.phrase, "b": second.phrase, "aspect": height / width}
    return make_draft(stage, [first, second], parameters)


def _solve_relation(references: References, parameters: Parameters) -> str:
    ax, ay = centre(get_box(find_region(references, get_text(parameters, "a"))))
    bx, by = centre(get_box(find_region(references, get_text(parameters, "b"))))
    dx, dy = ax - bx, (ay - by) * float(str(parameters["aspect"]))
    if abs(dx) >= abs(dy):
        return "left" if dx < 0 else "right"
    return "above" if dy < 0 else "below"


def field_box(stage: Stage, index: int) -> PixelRect:
    """One of nine fields, without a margin near the next."""
    width, height = stage.size
    column, row = index % 3, index // 3
    rim_x, rim_y = round(width * 0.03), round(height * 0.03)
    return (
        column * width // 3 + rim_x,
        row * height // 3 + rim_y,
        (column + 1) * width // 3 - rim_x,
        (row + 1) * height // 3 - rim_y,
    )


def _compose_field(brief: Brief) -> ItemDraft:
    stage = make_large_stage(brief)
    colour, big = stage.colours[0], brief.sample_is_large()
    radius = sample_small_radius(stage, big=False) * (2 if big else 1)
    left, top, right, bottom = field_box(stage, int(brief.rng.integers(9)))
    at = (int(brief.rng.integers(left, right + 1)), int(brief.rng.integers(top, bottom + 1)))
    inside = (
        min(max(at[0], radius + 4), stage.size.width - radius - 4),
        min(max(at[1], radius + 4), stage.size.height - radius - 4),
    )
    target = stage.add(colour, choose(brief.rng, DISTINCT_FIGURES[:8]), radius, at=inside)
    stage.maybe_occlude(target)
    stage.add_distractors(brief.difficulty.distractors, avoid=(colour,))
    return make_draft(stage, [target], {"target": target.phrase})


def _solve_field(references: References, parameters: Parameters) -> str:
    return locate_field(get_box(find_region(references, get_text(parameters, "target"))))


def _compose_pair_presence(brief: Brief) -> ItemDraft:
    first, second, shared = make_stage_pair(brief, Size(640, 480))
    answer, big = int(brief.rng.integers(4)), brief.sample_is_large()
    colour, figure = shared[0], choose(brief.rng, COMMON_FIGURES)
    evidence: list[Thing] = []
    for stage, is_present in ((first, answer in (0, 2)), (second, answer in (1, 2))):
        other = choose(brief.rng, distinct_figures(COMMON_FIGURES, figure))
        if is_present:
            target = stage.add(colour, figure, sample_small_radius(stage, big=big))
            evidence.append(target)
        elif brief.bernoulli(0.7):
            stage.add(colour, other, sample_small_radius(stage, big=big))
        stage.add(choose(brief.rng, shared[1:]), figure, sample_small_radius(stage, big=False))
        stage.add_distractors(brief.difficulty.distractors - 1, avoid=(colour,))
    return make_draft((first, second), evidence, {"target": f"{colour} {figure}"})


def _solve_pair_presence(references: References, parameters: Parameters) -> str:
    is_present = [bool(find_regions(references, get_text(parameters, "target"), f"Image_{k}")) for k in (0, 1)]
    return {(True, False): "Image_0", (False, True): "Image_1", (True, True): "both"}.get(
        (is_present[0], is_present[1]), "neither"
    )


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
