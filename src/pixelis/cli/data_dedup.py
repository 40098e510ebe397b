"""`pixelis data dedup` and `pixelis data audit`: duplicates, and evaluation media among training media."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.progress import progress_bars
from pixelis.cli.terminal import print_json, printable
from pixelis.core.errors import ConfigError

if TYPE_CHECKING:
    from pixelis.dedup.media_collection import MediaItem
    from pixelis.dedup.media_features import FeatureCache, ImageEncoder
    from pixelis.dedup.pixel_verify import DedupConfig
    from pixelis.media import Medium

SOURCE = "A folder, a list of paths in order of ingest, a corpus, or one split of it (corpus/nano:train)."

Flips = Annotated[
    Literal["report", "remove", "ignore"],
    Option(help="Mirror images: list them, remove them, or do not look for them."),
]
Cosine = Annotated[
    float | None,
    Option(min=-1.0, max=1.0, help="Smallest cosine that flags a pair; by default calibrated for the encoder."),
]
TrustPhash = Annotated[
    bool,
    Option(
        "--trust-phash",
        help="Remove pairs that are near by pHash alone, as the paper does; slides of one template are removed too.",
    ),
]


def dedup(
    source: Annotated[Path, Argument(metavar="MEDIA", help=SOURCE)],
    out: opt.ReportOut = None,
    as_json: opt.AsJson = False,
    flips: Flips = "report",
    quiet: opt.Quiet = False,
    cosine: Cosine = None,
    block_list: Annotated[
        Path | None,
        Option(help="JSON lines of media that earlier runs removed; they are removed again, new ones are added."),
    ] = None,
    cache: opt.FeatureCacheFile = None,
    trust_phash: TrustPhash = False,
) -> None:
    """List exact and near duplicates; the earliest is kept. No file is deleted (docs/how-to/dedup.md).

    Exit status: 0 if every medium could be read, 1 otherwise.
    """
    from pixelis.dedup.deduplicate import deduplicate
    from pixelis.dedup.evaluation_mask import BlockList
    from pixelis.dedup.media_features import FeatureCache

    config = make_dedup_config(flips=flips, cosine=cosine, trust_phash=trust_phash)
    items = media_from_source(source)
    if not items:
        raise ConfigError(f"{source} contains no files")
    with progress_bars() as show, closing(FeatureCache(cache)) as store:
        removed = BlockList(block_list) if block_list else None
        report = deduplicate(items, make_image_encoder(), config=config, cache=store, block_list=removed, progress=show)
    content = report.as_dict()
    finish(content, config, out, as_json, lambda: show_dedup(content))


def audit(
    train: Annotated[Path | None, Argument(metavar="TRAIN", help=f"Training media. {SOURCE}")] = None,
    evaluation: Annotated[
        Path | None, Argument(metavar="EVAL", help="Evaluation media, given in the same way.")
    ] = None,
    out: opt.ReportOut = None,
    as_json: opt.AsJson = False,
    flips: Flips = "report",
    quiet: opt.Quiet = False,
    cosine: Cosine = None,
    canaries: Annotated[
        int, Option(min=0, help="Number of evaluation images of which modified copies are planted, as a check.")
    ] = 10,
    inspect: Annotated[
        int, Option(min=0, help="Number of kept items that are checked again, for the residual rate.")
    ] = 1000,
    seed: opt.Seed = 0,
    cache: opt.FeatureCacheFile = None,
    trust_phash: TrustPhash = False,
    self_check: Annotated[
        bool,
        Option(
            "--self-check", help="Measure recall and precision on planted duplicates instead; TRAIN adds originals."
        ),
    ] = False,
    world: Annotated[
        int,
        Option(
            min=0, help="With --self-check: use this many items of each family of the world, not the built-in images."
        ),
    ] = 0,
) -> None:
    """Search training media for evaluation media, also modified copies (docs/how-to/dedup.md).

    Exit status: 0 if there are none and the planted copies were found, 1 otherwise.
    """
    from tempfile import TemporaryDirectory

    import numpy as np

    from pixelis.dedup import leakage_audit as auditing
    from pixelis.dedup.media_features import FeatureCache

    config = make_dedup_config(flips=flips, cosine=cosine, trust_phash=trust_phash)
    if not self_check and (train is None or evaluation is None):
        raise ConfigError("audit needs two arguments, TRAIN and EVAL, or --self-check")
    workspace = TemporaryDirectory(prefix="pixelis-audit-")
    with progress_bars() as progress, closing(FeatureCache(cache)) as store, workspace as folder:
        if self_check or train is None or evaluation is None:
            content = run_self_check(train, world, config, store, Path(folder), progress)
        else:
            content = auditing.audit_leakage(
                media_from_source(train),
                media_from_source(evaluation),
                make_image_encoder(),
                rng=np.random.default_rng(seed),
                config=config,
                cache=store,
                inspect=inspect,
                canaries=canaries,
                workspace=Path(folder),
                progress=progress,
            ).as_dict()
    finish(content, config, out, as_json, lambda: (show_self_check if self_check else show_audit)(content))


def run_self_check(
    extra_media: Path | None,
    world: int,
    config: DedupConfig,
    cache: FeatureCache,
    workspace: Path,
    progress: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """Planted duplicates of the built-in images, or of the world's, on which no threshold was chosen."""
    from pixelis.dedup.audit_selfcheck import self_check

    extra_items = [item for item in media_from_source(extra_media) if item.expected] if extra_media else []
    result = self_check(
        make_image_encoder(),
        workspace=workspace,
        extra_originals=[*extra_items, *world_items(range(world))],
        extra_unrelated=world_items(range(world, 2 * world)),
        built_in=not world,
        config=config,
        cache=cache,
        progress=progress,
    )
    return {**result.as_dict(), "ok": min(result.recall, result.precision) >= 0.98}


def media_from_source(source: Path) -> list[MediaItem]:
    """A folder, a list, or the media of a corpus or of one of its splits."""
    from pixelis.data.corpus.corpus import MANIFEST
    from pixelis.data.corpus.record import SPLITS
    from pixelis.dedup.media_collection import list_items

    folder, _, split = str(source).rpartition(":")
    if split in SPLITS and (Path(folder) / MANIFEST).is_file():
        return corpus_items(Path(folder), split)
    if folder and (Path(folder) / MANIFEST).is_file():
        raise ConfigError(f"{folder} has no split {split!r}: its splits are {', '.join(SPLITS)}")
    return corpus_items(source) if (source / MANIFEST).is_file() else list_items(source)


def corpus_items(folder: Path, split: str | None = None) -> list[MediaItem]:
    """The media of a corpus, rendered again on access."""
    from functools import partial

    from pixelis.data.corpus.corpus import Corpus
    from pixelis.dedup.media_collection import MediaItem

    corpus = Corpus(folder)

    def render_medium(number: int, medium_index: int) -> Medium:
        return corpus.media(corpus[number]).sources[medium_index]

    items = []
    for number, record in enumerate(corpus.records()):
        for index, facts in enumerate(record.item.media if split in (None, record.split) else ()):
            name, render = f"{record.item.id}/{facts.name}", partial(render_medium, number, index)
            items.append(MediaItem(name, render=render, known_sha256=facts.sha256))
    return items


def world_items(seeds: range) -> list[MediaItem]:
    """The media of an item of each family for each seed."""
    from pixelis.dedup.media_collection import MediaItem
    from pixelis.items import FAMILIES
    from pixelis.world.generate import generate

    return [
        MediaItem(f"{family}-{seed}-{number}", medium=medium)
        for seed in seeds
        for family in FAMILIES
        for number, medium in enumerate(generate(family, seed=seed).media)
    ]


def make_dedup_config(**options: Any) -> DedupConfig:
    from pydantic import ValidationError

    from pixelis.dedup.pixel_verify import DedupConfig

    try:
        return DedupConfig(**options)
    except ValidationError as error:
        raise ConfigError("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())) from error


def make_image_encoder() -> ImageEncoder:
    from pixelis.weights.encoders.visual_encoder import VisualEncoder

    return VisualEncoder()


def finish(
    content: dict[str, Any], config: DedupConfig, out: Path | None, as_json: bool, show: Callable[[], None]
) -> None:
    """Write and print a report, and exit with its status."""
    from pixelis.core.provenance import provenance, write_json

    if out is not None:
        write_json(out, {**provenance(config=config.model_dump()), **content})
    if as_json:
        print_json(content)
    else:
        show()
        if out is not None:
            typer.echo(f"wrote {out}")
    raise typer.Exit(0 if content["ok"] else 1)


def show_dedup(report: dict[str, Any]) -> None:
    media = report["items"] - len(report["passed_over"])
    typer.echo(f"{media} media: {len(report['kept'])} kept, {len(report['removed'])} removed{candidates_text(report)}")
    show_removals("duplicates", report["removed"])
    show_removals("mirrors", report["flips"])
    show_unread(report)


def candidates_text(report: dict[str, Any]) -> str:
    """Numbers of pairs by stage."""
    counts = {k.replace("_", " "): n for k, n in report["candidates"].items() if n}
    return f" (pairs: {', '.join(f'{k} {n}' for k, n in counts.items())})" if counts else ""


def show_audit(report: dict[str, Any]) -> None:
    for side in ("train", "evaluation"):
        typer.echo(f"{side}: {report[side]['images']} images, {report[side]['clips']} clips")
    near = report["candidate_items"]
    typer.echo(f"candidates in train: {near['images']} images, {near['clips']} clips{candidates_text(report)}")
    typer.echo(f"evaluation media in train, to be removed: {len(report['removed'])}")
    residual, canaries = report["residual"], report["canaries"]
    rate = f"{residual['rate']:.3%}, 95 % [{residual['low']:.3%}, {residual['high']:.3%}]"
    typer.echo(f"residual: {residual['found']} of {residual['inspected']} checked again, {rate}")
    for name in residual["names"][:20]:
        typer.echo(f"  missed: {printable(name)}")
    typer.echo(f"canaries: {canaries['found']} of {canaries['planted']} found")
    for name in canaries["missed"]:
        typer.echo(f"  not found: {printable(name)}")
    show_removals("is", report["removed"])
    show_removals("mirrors", report["flips"])
    show_unread(report)


def show_self_check(report: dict[str, Any]) -> None:
    typer.echo(f"recall {report['recall']:.4f} ({report['found']} of {report['planted']} planted copies)")
    typer.echo(f"precision {report['precision']:.4f} ({report['wrong']} wrong among {report['unrelated']} unrelated)")
    for variant, (found, total) in report["by_variant"].items():
        typer.echo(f"  {variant:18} {found} of {total} found")
    typer.echo(f"  mirror images      {report['flips'][0]} of {report['flips'][1]} reported")
    for line in [f"missed {name}" for name in report["missed"]] + report["wrongly"]:
        typer.echo(f"  {line}")


def show_removals(verb: str, removals: list[dict[str, Any]], limit: int = 20) -> None:
    for r in removals[:limit]:
        numbers = f"pHash {r['distance']}, cosine {r['cosine']:.2f}, overlap {r['overlap']:.2f}"
        typer.echo(f"  {printable(r['name'])} {verb} {printable(r['kept'])} ({r['kind']}; {numbers})")
    if len(removals) > limit:
        typer.echo(f"  … and {len(removals) - limit} more")


def show_unread(report: dict[str, Any]) -> None:
    for unread in report["unread"]:
        typer.echo(f"  unreadable: {printable(unread['name'])}: {printable(unread['reason'])}")
    for pair in report["unconfirmed"]:
        typer.echo(f"  not confirmed: {printable(pair['name'])} and {printable(pair['kept'])}: {pair['reason']}")
    if report["passed_over"]:
        typer.echo(f"  {len(report['passed_over'])} files are not media")
