"""`pixelis doctor`: installed packages and weights, backends, and a self-test of each tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer import Option

from pixelis.cli import options as opt
from pixelis.cli.terminal import escape_markup, print_json, stdout


def doctor(
    as_json: opt.AsJson = False,
    cache: Annotated[bool, Option("--cache/--no-cache", help="Let the self-test use cached results.")] = False,
) -> None:
    """Check the installation and test every tool.

    Exit status: 0 if all tools pass, 1 otherwise.
    """
    from pixelis.core.provenance import provenance
    from pixelis.evaluation.selftest import run_self_test
    from pixelis.tools.toolbox import Toolbox, ToolboxConfig
    from pixelis.weights import CATALOGUE, weight_state

    weights = {weight.name: weight_state(weight) for weight in CATALOGUE}
    console = stdout()
    test_results = []
    with Toolbox(ToolboxConfig(cache=cache)) as toolbox:
        identities = {name: tool.identity() for name, tool in toolbox.tools.items()}
        if not as_json:
            _print_environment(console, weights)
        for test_result in run_self_test(toolbox):
            test_results.append(test_result)
            if not as_json:
                name, result = test_result.case.tool, test_result.result
                mark = "[green]live[/]  " if test_result.passed else "[red]failed[/]"
                message = result.error or f"expected {test_result.case.expected}"
                tail = "" if test_result.passed else f"  [red]{escape_markup(message)}[/]"
                if result.status == "disabled":
                    mark, tail = "[dim]–[/]     ", f"  [dim]{escape_markup(message)}[/]"
                backend = escape_markup(identities[name].backend)
                console.print(f"  {name:<5}{mark} {result.seconds:6.2f} s  {backend}{tail}")
    passed = all(test_result.passed for test_result in test_results)
    if as_json:
        tools = {
            f.case.tool: {"live": f.passed, "backend": identities[f.case.tool].backend, "seconds": f.result.seconds,
                          "error": f.result.error}
            for f in test_results
        }  # fmt: skip
        print_json({"ok": passed, "tools": tools, "weights": weights, **provenance()})
    else:
        console.print("all tools work" if passed else "[red]a tool does not work[/]")
    raise typer.Exit(0 if passed else 1)


def _print_environment(console: Any, weights: Mapping[str, str]) -> None:
    from pixelis.core.provenance import provenance

    environment = provenance()
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    console.print(f"pixelis {environment['pixelis']}, Python {environment['python']}, {environment['machine']}")
    console.print(packages, style="dim")
    ready = [name for name, state in weights.items() if state == "ready"]
    absent = [name for name, state in weights.items() if state != "ready"]
    console.print(f"weights ready: {', '.join(ready) or 'none'}", style="dim")
    if absent:
        hint = "`pixelis models pull NAME`; some need the Hugging Face hub"
        console.print(f"weights missing: {', '.join(absent)} ({hint})", style="dim")
    console.print("tools, each tested on a bundled image or video:")
