"""`pixelis index`: the retrieval memory of accepted trajectories (docs/memory.md)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli.index_files import (
    kept_mask,
    key_maker,
    mask_for,
    open_to_index,
    opened_or_new,
    require_same_encoders,
    say_recovered,
    settings_of,
)
from pixelis.cli.terminal import AsJson, counted, print_json, printable

if TYPE_CHECKING:
    from pixelis.data.memories import Prepared
    from pixelis.retrieval.collection import Progress
    from pixelis.retrieval.features import FeatureCache
    from pixelis.retrieval.keys import KeyMaker
    from pixelis.retrieval.memory import Memory

app = typer.Typer(no_args_is_help=True)

BATCH = 32
"""Items that are made durable together while a corpus is read."""

Folder = Annotated[Path, typer.Argument(metavar="MEMORY", help="The memory's folder.", show_default=False)]
Config = Annotated[
    Path | None,
    typer.Option(help="A YAML file such as configs/memory/default.yaml; the memory's own settings if left out."),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        help="File that keeps features of media, so that a stopped run goes on; ~/.cache/pixelis if left out."
    ),
]


@app.command()
def build(
    corpus: Annotated[
        Path | None, typer.Argument(metavar="CORPUS", help="A corpus folder: its accepted train records are taken.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings laid over the file's.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The memory's folder; one that is there grows.")] = Path(
        "memory"
    ),
    config: Config = None,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(
            help="Media that may never enter (a folder, a list, a corpus split); the corpus's dev, dev-cal and test "
            "splits if left out."
        ),
    ] = None,
    without_mask: Annotated[
        bool, typer.Option("--without-mask", help="Build without an evaluation mask: such a memory cannot be audited.")
    ] = False,
    keep_traces: Annotated[bool, typer.Option("--keep-traces", help="Keep each trace beside its item.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many new records.")] = None,
    reindex: Annotated[
        bool, typer.Option("--reindex", help="Take nothing in: make the index of OUT again from its keys.")
    ] = False,
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Remember the accepted train records of a corpus, and index them. Run it again and it goes on.

    Evaluation media, plain or changed, are refused before a vector is made, and named.
    """
    from pixelis.cli.data_dedup import watched
    from pixelis.errors import ConfigError
    from pixelis.retrieval.features import FeatureCache

    if corpus is not None and "=" in corpus.name and not corpus.exists():  # a setting, with --reindex and no corpus
        corpus, overrides = None, [str(corpus), *(overrides or [])]
    settings = settings_of(out, config, overrides or [])
    if reindex:
        if corpus is not None:
            raise ConfigError("--reindex takes no corpus: it reads the keys of the memory in --out")
        with watched() as progress, open_to_index(out, settings) as memory:
            memory.build_index(progress=progress)
            report_index(memory, {}, as_json=as_json)
        return
    if corpus is None:
        raise ConfigError("build wants a corpus, or --reindex with -o MEMORY")
    with watched() as progress, closing(FeatureCache(cache)) as kept:
        keys = key_maker()
        mask = None if without_mask else mask_for(out, corpus, evaluation or [], kept, progress)
        with opened_or_new(out, settings, keys, mask, corpus) as memory:
            counts = take_in(memory, corpus, keys, kept, keep_traces=keep_traces, limit=limit, progress=progress)
            memory.build_index(progress=progress)
            report_index(memory, counts, as_json=as_json)


def take_in(
    memory: Memory,
    corpus: Path,
    keys: KeyMaker,
    cache: FeatureCache,
    *,
    keep_traces: bool,
    limit: int | None,
    progress: Progress,
) -> dict[str, Any]:
    """Add what is new, a batch at a time; what was refused is named."""
    from pixelis.data.memories import drafts_of
    from pixelis.data.store import Corpus

    opened = Corpus(corpus)
    known = {item.id for _, item in memory.items()}
    total = sum(row.accepted for row in opened.rows(split="train"))
    counts: dict[str, Any] = {"added": 0, "known": 0, "deleted": 0, "repeats": 0, "refused": []}
    read = drafts_of(
        opened, keys, mask=memory.mask, known=known, deleted=memory.files.was_deleted, keep_traces=keep_traces,
        cache=cache,
    )  # fmt: skip
    batch: list[Prepared] = []
    for number, prepared in enumerate(read, 1):
        progress("reading the corpus", number, total)
        if prepared.draft is None:
            if prepared.reason in ("known", "deleted"):
                counts[prepared.reason] += 1
            else:
                counts["refused"].append({"id": prepared.id, "reason": prepared.reason})
            continue
        batch.append(prepared)
        full = limit is not None and counts["added"] + counts["repeats"] + len(batch) >= limit
        if len(batch) == BATCH or full:
            put(memory, batch, counts)
            batch = []
        if full:
            break
    put(memory, batch, counts)
    return counts


def put(memory: Memory, batch: list[Prepared], counts: dict[str, Any]) -> None:
    outcomes = memory.add([prepared.draft for prepared in batch if prepared.draft is not None])
    counts["added"] += sum(outcome.row is not None for outcome in outcomes)
    counts["repeats"] += sum(outcome.row is None for outcome in outcomes)


@app.command()
def add(
    folder: Folder,
    traces: Annotated[
        Path, typer.Argument(help="A file of traces, such as `pixelis ask -o page.html` writes beside its page.")
    ],
    media: Annotated[list[Path] | None, typer.Option(help="Media of the traces, where their paths have moved.")] = None,
    keep_traces: Annotated[bool, typer.Option("--keep-traces", help="Keep each trace beside its item.")] = False,
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Append the trajectories of a trace file. Nothing is added where one of them shows evaluation media, or has no
    answer."""
    from pixelis.cli.data_dedup import watched
    from pixelis.errors import ConfigError
    from pixelis.retrieval.features import FeatureCache
    from pixelis.retrieval.memory import Memory
    from pixelis.retrieval.remembering import remember
    from pixelis.trace.codec import read
    from pixelis.trace.reopening import reopen

    with watched() as progress, closing(FeatureCache(cache)) as kept:
        keys = key_maker()
        with Memory.open(folder, mask=kept_mask(folder)) as memory:
            require_same_encoders(memory, keys)
            drafts, taken = [], {item.id for _, item in memory.items()}
            for number, trace in enumerate(read(traces), 1):
                if not trace.answer:
                    raise ConfigError(f"{traces}: {trace.id} came to no answer: there is nothing to remember")
                opened = reopen(trace, traces, media or [])
                # every first question to `pixelis ask` has the same id: some of its seal tells them apart
                name = trace.id if trace.id not in taken else f"{trace.id}-{trace.seal[:8]}"
                taken.add(name)
                drafts.append(
                    remember(trace, opened, keys, mask=memory.mask, id=name, keep_trace=keep_traces, cache=kept)
                )
                progress("reading traces", number, number)
            outcomes = memory.add(drafts)
            memory.save_index()
            added = [
                {"id": draft.item.id, **outcome._asdict()} for draft, outcome in zip(drafts, outcomes, strict=True)
            ]
            if as_json:
                print_json({"added": added, "items": len(memory), "watermark": memory.watermark})
                return
            for entry in added:
                place = f"row {entry['row']}" if entry["row"] is not None else f"repeats row {entry['repeats']}"
                typer.echo(f"{printable(entry['id'])}: {place}")
            say_recovered(memory)
            typer.echo(f"{counted(len(memory), 'item')} in {folder}")


@app.command()
def search(
    folder: Folder,
    text: Annotated[str, typer.Option(help="The question, and perhaps thoughts.")] = "",
    media: Annotated[list[Path] | None, typer.Option(help="Pictures and clips of the question.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many neighbours.")] = 8,
    same_source: Annotated[
        bool, typer.Option("--same-source", help="Also show items of the very media that are asked about.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """The items nearest to a question and its media, nearest first."""
    from pixelis.errors import ConfigError
    from pixelis.media import MediaSet, open_media
    from pixelis.retrieval.memory import Memory

    if not text and not media:
        raise ConfigError("search wants --text, --media, or both")
    memory = Memory.reading(folder, settings_of(folder, config, []))
    keys = key_maker()
    require_same_encoders(memory, keys)
    say_recovered(memory)
    given = MediaSet(tuple(open_media(path) for path in media or []))
    own = set() if same_source else memory.rows_showing([medium.sha256 for medium in given.given])
    found = memory.search(keys.key(keys.key_text(text), [], given), k, without=own)
    if as_json:
        neighbours = [{"row": n.row, "similarity": n.similarity, **n.item.model_dump(mode="json")} for n in found]
        print_json({"neighbours": neighbours, "items": len(memory), "index": memory.kind, "same_source": len(own)})
        return
    for n in found:
        chain = " ".join(n.item.signature) or "no calls"
        typer.echo(f"{n.similarity:6.3f}  {printable(n.item.id)}  {chain}  -> {printable(n.item.answer)[:80]}")
        typer.echo(f"        {printable(' '.join(n.item.text.split()))[:70]}")
    same = f"; {len(own)} that show the very same media are left out (--same-source)" if own else ""
    typer.echo(f"{len(found)} of {len(memory)} items, {memory.kind} search{same}")


@app.command()
def audit(
    folder: Folder,
    mask: Annotated[Path | None, typer.Option(help="An evaluation mask; the memory's own if left out.")] = None,
    queries: Annotated[int, typer.Option(min=1, help="Random queries that probe the index.")] = 10_000,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours of each that are looked at.")] = 8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Ask every item, and what random queries return, whether it is evaluation media.

    Exit status: 0 if nothing is; 2 at the first masked hit, which is named.
    """
    import numpy as np

    from pixelis.cli.data_dedup import watched
    from pixelis.errors import ConfigError
    from pixelis.retrieval.mask import EvaluationMask
    from pixelis.retrieval.memory import Memory
    from pixelis.retrieval.memory_audit import audit_memory, require_undamaged
    from pixelis.retrieval.memory_head import MASK

    memory = Memory.reading(folder)
    if not len(memory):
        raise ConfigError(f"{folder} is empty: there is nothing to audit")
    asked = EvaluationMask.load(mask) if mask else kept_mask(folder)
    if asked is None:
        require_undamaged(memory)
        lost = (
            f"its evaluation mask is not in it ({MASK})" if memory.head.mask else "was built without an evaluation mask"
        )
        raise ConfigError(f"{folder} is undamaged, and {lost}: name one with --mask")
    with watched() as progress:
        rng = np.random.default_rng(seed)
        found = audit_memory(memory, asked, rng=rng, queries=queries, k=k, progress=progress)
    if as_json:
        print_json(found.as_dict())
        return
    typer.echo(f"{found.items} items, {found.screened} of them compared with this mask of {found.masked_media} media")
    typer.echo(f"{found.near_hashes} have a pHash near evaluation's; their pixels were told apart when they came in")
    rate = f"share of queries with one: 95 % [{found.low:.4%}, {found.high:.4%}]"
    typer.echo(f"masked hits: 0 of {found.hits} returned to {found.queries} queries ({found.kind} search); {rate}")


@app.command()
def delete(
    folder: Folder,
    item: Annotated[str, typer.Argument(help="The item's id, or its row with --row.")],
    row: Annotated[
        bool, typer.Option("--row", help="ITEM is a row number: for an item whose line is damaged.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take one item out: its key, its line, and the media and trace files that no other item names.

    A later `build` leaves it out too; `add` takes it in again.
    """
    from pixelis.errors import ConfigError
    from pixelis.retrieval.memory import Memory

    if row and not item.isdigit():
        raise ConfigError(f"--row wants a number, not {item!r}")
    with Memory.open(folder) as memory:
        number = int(item) if row else memory.find(item)
        memory.delete(number)
        if as_json:
            print_json({"deleted": number, "items": len(memory)})
        else:
            say_recovered(memory)
            typer.echo(f"row {number} is gone; {counted(len(memory), 'item')} left")


def report_index(memory: Memory, counts: dict[str, Any], *, as_json: bool) -> None:
    content = {**counts, "items": len(memory), "watermark": memory.watermark, "index": memory.kind}
    if as_json:
        print_json({**content, "folder": str(memory.folder)})
        return
    if counts:
        gone = f", {counts['deleted']} deleted before and left out" if counts["deleted"] else ""
        typer.echo(
            f"{counts['added']} added, {counts['known']} known, {counts['repeats']} repeat others, "
            f"{len(counts['refused'])} refused{gone}"
        )
        for entry in counts["refused"][:20]:
            typer.echo(f"  {printable(entry['reason'])}")
    typer.echo(f"{counted(len(memory), 'item')} in {memory.folder}, {memory.kind} search")
