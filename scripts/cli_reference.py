"""Write docs/reference/cli.md from the command line itself; `make docs` runs it, and git ignores the page."""

from __future__ import annotations

from pathlib import Path

import typer.main

from pixelis.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"


def sections(command: object, words: tuple[str, ...]) -> list[str]:
    """One section a verb: its help, arguments and options."""
    children = getattr(command, "commands", {})
    out = []
    if words and (not children or getattr(command, "invoke_without_command", False)):
        out += [f"## `{' '.join(('pixelis', *words))}`", "", str(getattr(command, "help", None) or "").strip(), ""]
        rows = [row for parameter in command.params if (row := parameter_row(parameter))]  # type: ignore[attr-defined]
        if rows:
            out += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    for name, child in children.items():
        out += sections(child, (*words, name))
    return out


def parameter_row(parameter: object) -> str:
    names = ", ".join(f"`{name}`" for name in getattr(parameter, "opts", []) if name != "--help")
    text = " ".join(str(getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    default = getattr(parameter, "default", None)
    shown = f" Default: `{default}`." if default not in (None, False, [], ()) and not callable(default) else ""
    if getattr(parameter, "param_type_name", "") == "argument":
        names = f"`{getattr(parameter, 'metavar', None) or getattr(parameter, 'name', '').upper()}`"
    return f"| {names} | {text}{shown} |" if names else ""


def main() -> None:
    head = ["# Command line", "", "`pixelis VERB --help` prints the same. `--json` prints one JSON object.", ""]
    PAGE.write_text("\n".join([*head, *sections(typer.main.get_command(app), ())]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
