"""`pixelis doctor`: what is installed, which backends are live, and whether each tool works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from pixelis.cli.terminal import AsJson, escaped, print_json, stdout


def doctor(
    as_json: AsJson = False,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Let the self-test use kept results.")] = False,
) -> None:
    """Exit status 0: every tool passed its self-test; 1: one did not."""
    from pixelis.eval.selftest import self_test
    from pixelis.rundir import provenance
    from pixelis.tools.toolbox import Toolbox, ToolboxConfig
    from pixelis.weights import CATALOGUE, state_of

    weights = {weight.name: state_of(weight) for weight in CATALOGUE}
    console = stdout()
    found = []
    with Toolbox(ToolboxConfig(cache=cache)) as toolbox:
        identities = {name: tool.identity() for name, tool in toolbox.tools.items()}
        if not as_json:
            _print_house(console, weights)
        for finding in self_test(toolbox):
            found.append(finding)
            if not as_json:
                name, result = finding.check.tool, finding.result
                mark = "[green]live[/]  " if finding.passed else "[red]failed[/]"
                said = result.error or f"wanted {finding.check.expected}"
                tail = "" if finding.passed else f"  [red]{escaped(said)}[/]"
                console.print(f"  {name:<5}{mark} {result.seconds:6.2f} s  {escaped(identities[name].backend)}{tail}")
    passed = all(finding.passed for finding in found)
    if as_json:
        content: dict[str, Any] = {
            "ok": passed,
            "tools": {
                f.check.tool: {
                    "live": f.passed,
                    "backend": identities[f.check.tool].backend,
                    "seconds": f.result.seconds,
                    "error": f.result.error,
                }
                for f in found
            },
            "weights": weights,
            **provenance(),
        }
        print_json(content)
    else:
        console.print("all live" if passed else "[red]not all live[/]")
    raise typer.Exit(0 if passed else 1)


def _print_house(console: Any, weights: Mapping[str, str]) -> None:
    from pixelis.rundir import provenance

    here = provenance()
    packages = ", ".join(f"{name} {version}" for name, version in here["packages"].items())
    console.print(f"pixelis {here['pixelis']}, Python {here['python']}, {here['machine']}")
    console.print(packages, style="dim")
    ready = [name for name, state in weights.items() if state == "ready"]
    absent = [name for name, state in weights.items() if state != "ready"]
    console.print(f"weights ready: {', '.join(ready) or 'none'}", style="dim")
    if absent:
        console.print(
            f"not here: {', '.join(absent)} (`pixelis models pull NAME`; a hub's need its network)", style="dim"
        )
    console.print("tools, each tried on a bundled picture or clip:")
