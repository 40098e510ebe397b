"""One evaluation run: a model by name, its tasks, and the files that it writes."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from pixelis.core.atomic import write_atomic
from pixelis.core.provenance import provenance, write_json
from pixelis.evaluation.harness import Evaluation, evaluate, summarise_scores, to_json, to_row
from pixelis.evaluation.tasks import Task
from pixelis.rollout.episode import Rollout
from pixelis.rollout.models import open_model
from pixelis.tools.toolbox import Toolbox, ToolboxConfig, build_tools
from pixelis.trace import codec
from pixelis.weights.encoders.visual_encoder import VisualEncoder

EVALUATION_TOOLS = ToolboxConfig(seg="classical", isolate=False, workers=2)
REPORTED_TOOL_SETTINGS = {"seg", "plugins", "disabled", "deadline_s"}


def evaluate_model(
    model: str,
    tasks: Sequence[Task],
    *,
    limit: int,
    without_tools: bool = False,
    temperature: float = 0.0,
    seed: int = 0,
    composite: bool = False,
    strict_calls: bool = False,
    tools: ToolboxConfig = EVALUATION_TOOLS,
    out: Path | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Evaluate, and write report.json (with command, commit and settings), items.jsonl and traces.jsonl into `out`.

    With `composite` every row also has E_ext's cosines, which RaCPR needs.
    """
    if without_tools:
        tools = tools.model_copy(update={"disabled": tuple(build_tools(tools))})
    opened_model = open_model(model, strict_calls=strict_calls)
    encoder = VisualEncoder() if composite else None
    start, cpu_start = time.monotonic(), cpu_seconds()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "traces.jsonl").unlink(missing_ok=True)

    def save_trace(rollout: Rollout) -> None:
        if out is not None:
            codec.append(rollout.trace, out / "traces.jsonl", rollout.blobs)

    with closing(opened_model), Toolbox(tools) as toolbox:
        rows = tuple(
            evaluate(
                opened_model, toolbox, tasks, limit=limit, seed=seed, temperature=temperature, encoder=encoder,
                on_rollout=save_trace, on_progress=on_progress,
            )
        )  # fmt: skip
    evaluation = Evaluation(
        model=model,
        tasks=tuple(summarise_scores(task.name, [row for row in rows if row.task == task.name]) for task in tasks),
        overall=summarise_scores("overall", rows),
        scored_items=rows,
        seconds=time.monotonic() - start,
        cpu_seconds=cpu_seconds() - cpu_start,
    )
    if out is not None:
        write_atomic(out / "items.jsonl", "".join(json.dumps(to_row(row)) + "\n" for row in rows).encode())
        settings = {
            "limit": limit, "without_tools": without_tools, "strict_calls": strict_calls, "temperature": temperature,
            "seed": seed, "tools": tools.model_dump(mode="json", include=REPORTED_TOOL_SETTINGS),
        }  # fmt: skip
        write_json(out / "report.json", provenance(**settings, report=to_json(evaluation)))
    return evaluation


def cpu_seconds() -> float:
    """CPU seconds of this process and its children so far."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usages)
