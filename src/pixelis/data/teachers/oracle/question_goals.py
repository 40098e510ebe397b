"""What a question wants to know, in a few words, with the name on a page that it is about.

A plain teacher says it in every thought. A small policy then has to understand the question once, and from there on
carries the word from one thought to the next, instead of going back to the question before each step.
"""

from __future__ import annotations

from pixelis.items import Item

GOALS = {
    "search.panel_text": "text", "search.pair_text": "text", "search.tag_text": "tag",
    "search.ink_colour": "ink of {word}", "search.shape": "shape", "search.texture": "texture",
    "search.orientation": "orientation", "search.relation": "relation", "search.field": "part",
    "search.pair_presence": "picture",
    "choice.present": "present", "choice.absent": "absent", "choice.extreme": "{most}", "choice.size": "{most}",
    "choice.count": "number", "choice.colour": "figure", "choice.panel": "text", "choice.neighbour": "neighbour",
    "choice.pattern": "pattern", "choice.pair_more": "more", "motion.direction": "direction", "motion.mover": "mover",
    "motion.fastest": "{most}", "motion.pair": "clip going {way}", "motion.order": "{which}", "motion.times": "times",
    "motion.leaver": "leaver", "motion.where_when": "place then", "motion.turns": "last colour",
    "motion.passing": "passing text", "document.cell": "{column} of {row}",
    "document.row_most": "row of {most} {column}", "document.column_value": "value of {label}",
    "document.most_label": "{most} column", "document.difference": "difference of {a} and {b}",
    "document.colour_value": "coloured value", "document.month_value": "value of {label}",
    "document.peak": "{most} month", "document.share": "share of {label}", "document.legend": "legend",
    "document.field": "{key}", "document.pair_field": "{key}", "document.pair_more": "seats",
    "lecture.title_when": "title then", "lecture.value_when": "{key} then", "lecture.task": "task",
    "lecture.pointed": "line beside", "lecture.value_on": "{key} there", "lecture.sum": "{a} plus {b}",
    "lecture.change": "{key} on {a} and {b}", "lecture.next": "next slide", "lecture.count": "slides",
    "space.count": "count", "space.pair_count": "count in all", "space.together": "count together",
    "space.ratio": "ratio", "space.share": "area", "space.distance": "distance", "space.width": "width",
    "space.order": "order {way}", "coco.count": "count", "coco.side": "side", "coco.largest": "largest",
    "photo.count": "count", "photo.count_in": "count", "photo.where": "place", "photo.colour": "colour",
    "photo.there": "there", "photo.larger": "larger", "photo.side": "side", "photo.which_picture": "picture",
    "ocr.largest": "largest text", "ocr.at": "text here", "text.all": "all text", "text.title": "title",
    "text.after": "entry",
}  # fmt: skip


def get_goal(item: Item) -> str:
    """The goal of an item; empty for a question of somebody's own."""
    if item.template == "photo.missing":  # asked like others, about a thing that is not there
        question = item.question.casefold()
        return "colour" if "colo" in question else "place" if "where" in question else ""
    return GOALS.get(item.template, "").format_map(item.parameters)


def prefix_goal(goal: str, text: str) -> str:
    """Words after the goal that they serve."""
    return f"Goal: {goal}. {text}" if goal and text else text
