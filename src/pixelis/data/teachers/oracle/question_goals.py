"""What a question asks for, in a few words, with the name on a page that it is about.

With canonical wording every thought begins with it. A small policy then has to understand the question only once, and
copies the goal from one thought to the next.
"""

from __future__ import annotations

from pixelis.items import Item
from pixelis.world.package_data import read_package_yaml

GOALS: dict[str, str] = read_package_yaml("pixelis.data.teachers.oracle", "thoughts.yaml")["goals"]


def get_goal(item: Item) -> str:
    """The goal of an item; empty for a user's own question."""
    if item.template == "photo.missing":  # worded like other questions, about an absent thing
        question = item.question.casefold()
        return "colour" if "colo" in question else "place" if "where" in question else ""
    return GOALS.get(item.template, "").format_map(item.parameters)


def prefix_goal(goal: str, text: str) -> str:
    """A text after its goal."""
    return f"Goal: {goal}. {text}" if goal and text else text
