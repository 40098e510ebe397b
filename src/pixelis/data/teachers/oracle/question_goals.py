"""What a question wants to know, in a few words, with the name on a page that it is about.

A plain teacher says it in every thought. A small policy then has to understand the question once, and from there on
carries the word from one thought to the next, instead of going back to the question before each step.
"""

from __future__ import annotations

from pixelis.items import Item
from pixelis.world.package_data import read_package_yaml

GOALS: dict[str, str] = read_package_yaml("pixelis.data.teachers.oracle", "thoughts.yaml")["goals"]


def get_goal(item: Item) -> str:
    """The goal of an item; empty for a question of somebody's own."""
    if item.template == "photo.missing":  # asked like others, about a thing that is not there
        question = item.question.casefold()
        return "colour" if "colo" in question else "place" if "where" in question else ""
    return GOALS.get(item.template, "").format_map(item.parameters)


def prefix_goal(goal: str, text: str) -> str:
    """Words after the goal that they serve."""
    return f"Goal: {goal}. {text}" if goal and text else text
