"""`pixelis index`: the memory of accepted trajectories for retrieval (docs/reference/memory.md)."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pixelis.cli import index_files
from pixelis.cli import options as opt
from pixelis.cli.progress import progress_bars
from pixelis.cli.terminal import pluralise, print_json, printable
from pixelis.core.errors import ConfigError

if TYPE_CHECKING:
    from pixelis.data.corpus.exemplar_drafts import CorpusDraft
    from pixelis.dedup.media_collection import ProgressCallback
    from pixelis.dedup.media_features import FeatureCache
    from pixelis.memory.keys import KeyMaker
    from pixelis.memory.memory_store import MemoryStore

app = typer.Typer(no_args_is_help=True)

BATCH = 32
"""Items that are made durable together while a corpus is read."""

Folder = Annotated[Path, Argument(metavar="MEMORY", help="The memory's folder.")]


@app.command()
def build(
    corpus: Annotated[
        Path | None, Argument(metavar="CORPUS", help="A corpus folder; its accepted train records are added.")
    ] = None,
    overrides: opt.Overrides = None,
    out: Annotated[Path, opt.out("The memory's folder; an existing memory grows.")] = Path("memory"),
    config: opt.Config = None,
    evaluation: Annotated[
        opt.Paths,
        Option(
            help="Evaluation media, which must not enter (a folder, a list or a corpus split); by default the dev, "
            "dev-cal and test splits of the corpus."
        ),
    ] = None,
    without_mask: Annotated[
        bool, Option("--without-mask", help="Build without an evaluation mask; such a memory cannot be audited.")
    ] = False,
    keep_traces: Annotated[bool, Option("--keep-traces", help="Keep each trace beside its item.")] = False,
    limit: Annotated[int | None, opt.limit("Stop after this many new records.")] = None,
    reindex: Annotated[bool, Option("--reindex", help="Add nothing; rebuild the index of OUT from its keys.")] = False,
    cache: opt.FeatureCacheFile = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Add the accepted train records of a corpus to a memory, and index them.

    Run the same command again to resume. Evaluation media, also modified copies, are refused and listed.
    """
    from pixelis.dedup.media_features import FeatureCache

    if corpus is not None and "=" in corpus.name and not corpus.exists():  # KEY=VALUE after --reindex, without a corpus
        corpus, overrides = None, [str(corpus), *(overrides or [])]
    settings = index_files.load_memory_config(out, config, overrides or [])
    if reindex:
        if corpus is not None:
            raise ConfigError("--reindex takes no corpus; it reads the keys of the memory in --out")
        with progress_bars() as show, index_files.open_for_reindex(out, settings) as memory:
            memory.build_index(progress=show)
            report_index(memory, {}, as_json=as_json)
        return
    if corpus is None:
        raise ConfigError("build needs a corpus, or --reindex with -o MEMORY")
    with progress_bars() as show, closing(FeatureCache(cache)) as features:
        keys = index_files.make_key_maker()
        mask = None if without_mask else index_files.choose_mask(out, corpus, evaluation or [], features, show)
        with index_files.open_or_create(out, settings, keys, mask, corpus) as memory:
            counts = add_corpus(memory, corpus, keys, features, keep_traces=keep_traces, limit=limit, progress=show)
            memory.build_index(progress=show)
            report_index(memory, counts, as_json=as_json)


def add_corpus(
    memory: MemoryStore,
    corpus: Path,
    keys: KeyMaker,
    cache: FeatureCache,
    *,
    keep_traces: bool,
    limit: int | None,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Add the new records, a batch at a time; refused ones are listed in the result."""
    from pixelis.data.corpus.corpus import Corpus
    from pixelis.data.corpus.exemplar_drafts import prepare_drafts

    store = Corpus(corpus)
    known_ids = {item.id for _, item in memory.items()}
    total = sum(row.accepted for row in store.rows(split="train"))
    counts: dict[str, Any] = {"added": 0, "known": 0, "deleted": 0, "repeats": 0, "refused": []}
    prepared_records = prepare_drafts(
        store, keys, mask=memory.mask, known_ids=known_ids, is_deleted=memory.files.was_deleted,
        keep_traces=keep_traces, cache=cache,
    )  # fmt: skip
    batch: list[CorpusDraft] = []
    for number, prepared in enumerate(prepared_records, 1):
        progress("reading the corpus", number, total)
        if prepared.draft is None:
            if prepared.reason in ("known", "deleted"):
                counts[prepared.reason] += 1
            else:
                counts["refused"].append({"id": prepared.id, "reason": prepared.reason})
            continue
        batch.append(prepared)
        limit_reached = limit is not None and counts["added"] + counts["repeats"] + len(batch) >= limit
        if len(batch) == BATCH or limit_reached:
            add_batch(memory, batch, counts)
            batch = []
        if limit_reached:
            break
    add_batch(memory, batch, counts)
    return counts


def add_batch(memory: MemoryStore, batch: list[CorpusDraft], counts: dict[str, Any]) -> None:
    outcomes = memory.add([prepared.draft for prepared in batch if prepared.draft is not None])
    counts["added"] += sum(outcome.row is not None for outcome in outcomes)
    counts["repeats"] += sum(outcome.row is None for outcome in outcomes)


@app.command()
def add(
    folder: Folder,
    traces: Annotated[Path, Argument(help="A file of traces, such as `pixelis ask -o page.html` writes.")],
    media: opt.Media = None,
    keep_traces: Annotated[bool, Option("--keep-traces", help="Keep each trace beside its item.")] = False,
    cache: opt.FeatureCacheFile = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Add the trajectories of a trace file. Nothing is added if one of them shows evaluation media or has no answer."""
    from pixelis.dedup.media_features import FeatureCache
    from pixelis.memory.builder import build_draft
    from pixelis.memory.memory_store import MemoryStore
    from pixelis.trace.codec import read
    from pixelis.trace.media_records import reopen_media

    with progress_bars() as progress, closing(FeatureCache(cache)) as features:
        keys = index_files.make_key_maker()
        with MemoryStore(folder, mask=index_files.load_mask(folder)) as memory:
            index_files.require_same_encoders(memory, keys)
            draft = partial(build_draft, keys=keys, mask=memory.mask, attach_trace=keep_traces, cache=features)
            drafts, names = [], {item.id for _, item in memory.items()}
            for number, trace in enumerate(read(traces), 1):
                if not trace.answer:
                    raise ConfigError(f"{traces}: {trace.id} has no answer, so it cannot be added")
                opened = reopen_media(trace, traces, media or [])
                # every trace of `pixelis ask` has the same id; its seal distinguishes them
                name = trace.id if trace.id not in names else f"{trace.id}-{trace.seal[:8]}"
                names.add(name)
                drafts.append(draft(trace, opened, item_id=name))
                progress("reading traces", number, number)
            outcomes = memory.add(drafts)
            memory.save_index()
            pairs = zip(drafts, outcomes, strict=True)
            rows = [{"id": made.item.id, **outcome._asdict()} for made, outcome in pairs]
            if as_json:
                print_json({"added": rows, "items": len(memory), "watermark": memory.watermark})
                return
            for entry in rows:
                place = f"row {entry['row']}" if entry["row"] is not None else f"duplicate of row {entry['repeats']}"
                typer.echo(f"{printable(entry['id'])}: {place}")
            index_files.warn_dropped_append(memory)
            typer.echo(f"{pluralise(len(memory), 'item')} in {folder}")


@app.command()
def search(
    folder: Folder,
    text: Annotated[str, Option(help="The question.")] = "",
    media: opt.Media = None,
    fps: opt.Fps = 25.0,
    k: Annotated[int, Option("-k", min=1, help="Number of neighbours.")] = 8,
    same_source: Annotated[bool, Option("--same-source", help="Also show items made from the same media.")] = False,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show the items nearest to a question and its media."""
    from pixelis.media import MediaSet, open_media
    from pixelis.memory.memory_store import MemoryStore

    if not text and not media:
        raise ConfigError("search needs --text, --media, or both")
    memory = MemoryStore.open_read_only(folder, index_files.load_memory_config(folder, config, []))
    keys = index_files.make_key_maker()
    index_files.require_same_encoders(memory, keys)
    index_files.warn_dropped_append(memory)
    query_media = MediaSet(tuple(open_media(path, fps=fps) for path in media or []))
    hashes = [] if same_source else [medium.sha256 for medium in query_media.sources]
    same_rows = memory.rows_with_media(hashes)
    hits = memory.search(keys.key(keys.key_text(text), [], query_media), k, exclude=same_rows)
    if as_json:
        neighbours = [{"row": n.row, "similarity": n.similarity, **n.item.model_dump(mode="json")} for n in hits]
        counts = {"items": len(memory), "index": memory.kind, "same_source": len(same_rows)}
        print_json({"neighbours": neighbours, **counts})
        return
    for n in hits:
        chain = " ".join(n.item.signature) or "no calls"
        typer.echo(f"{n.similarity:6.3f}  {printable(n.item.id)}  {chain}  -> {printable(n.item.answer)[:80]}")
        typer.echo(f"        {printable(' '.join(n.item.text.split()))[:70]}")
    note = f"; {len(same_rows)} from the same media are left out (--same-source)" if same_rows else ""
    typer.echo(f"{len(hits)} of {len(memory)} items, {memory.kind} search{note}")


@app.command()
def audit(
    folder: Folder,
    mask: Annotated[Path | None, Option(help="An evaluation mask; by default the memory's own.")] = None,
    queries: Annotated[int, Option(min=1, help="Number of random queries.")] = 10_000,
    k: Annotated[int, Option("-k", min=1, help="Neighbours checked per query.")] = 8,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Check every item, and the results of random queries, for evaluation media.

    Exit status: 0 if there are none, 2 at the first one found, which is named.
    """
    import numpy as np

    from pixelis.dedup.evaluation_mask import EvaluationMask
    from pixelis.memory.memory_audit import audit_memory, require_undamaged
    from pixelis.memory.memory_head import MASK_FILE
    from pixelis.memory.memory_store import MemoryStore

    memory = MemoryStore.open_read_only(folder)
    if not len(memory):
        raise ConfigError(f"{folder} is empty; there is nothing to audit")
    evaluation_mask = EvaluationMask.load(mask) if mask else index_files.load_mask(folder)
    if evaluation_mask is None:
        require_undamaged(memory)
        missing = f"its evaluation mask is missing ({MASK_FILE})"
        why = missing if memory.head.mask else "was built without an evaluation mask"
        raise ConfigError(f"{folder} is undamaged, but {why}; give one with --mask")
    with progress_bars() as progress:
        rng = np.random.default_rng(seed)
        found = audit_memory(memory, evaluation_mask, rng=rng, queries=queries, k=k, progress=progress)
    if as_json:
        print_json(found.as_dict())
        return
    typer.echo(f"{found.items} items, {found.screened} of them compared with a mask of {found.masked_media} media")
    near = f"{found.near_hashes} have a pHash near one of the mask"
    typer.echo(f"{near}; their pixels were compared when they were added")
    rate = f"share of queries with one: 95 % [{found.low:.4%}, {found.high:.4%}]"
    typer.echo(f"masked hits: 0 of {found.hits} returned to {found.queries} queries ({found.kind} search); {rate}")


@app.command()
def delete(
    folder: Folder,
    item: Annotated[str, Argument(help="The item's id, or its row number with --row.")],
    row: Annotated[bool, Option("--row", help="ITEM is a row number; for an item whose line is damaged.")] = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Delete one item: its key, its line, and media and trace files that no other item uses.

    A later `build` skips it; `add` can add it again.
    """
    from pixelis.memory.memory_store import MemoryStore

    if row and not item.isdigit():
        raise ConfigError(f"--row needs a number, not {item!r}")
    with MemoryStore(folder) as memory:
        number = int(item) if row else memory.find(item)
        memory.delete(number)
        if as_json:
            print_json({"deleted": number, "items": len(memory)})
        else:
            index_files.warn_dropped_append(memory)
            typer.echo(f"deleted row {number}; {pluralise(len(memory), 'item')} left")


def report_index(memory: MemoryStore, counts: dict[str, Any], *, as_json: bool) -> None:
    content = {**counts, "items": len(memory), "watermark": memory.watermark, "index": memory.kind}
    if as_json:
        print_json({**content, "folder": str(memory.folder)})
        return
    if counts:
        deleted_text = f", {counts['deleted']} deleted before and skipped" if counts["deleted"] else ""
        typer.echo(
            f"{counts['added']} added, {counts['known']} already there, {counts['repeats']} duplicates, "
            f"{len(counts['refused'])} refused{deleted_text}"
        )
        for entry in counts["refused"][:20]:
            typer.echo(f"  {printable(entry['reason'])}")
    typer.echo(f"{pluralise(len(memory), 'item')} in {memory.folder}, {memory.kind} search")
