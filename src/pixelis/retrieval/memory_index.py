"""From a query to rows: exact for small memories, OPQ + IVF-PQ for large ones, HNSW for the text-only ablation
(supp:retrieval_index, tab:supp_index_conf).

Whatever proposes rows, the exact mix of cosines over the keys on disk orders them: product codes alone have a recall@8
of about 0.4. Keys in half precision are what is compared, by the same FAISS routine in the exact index and in the
re-rank, so that they agree to the bit.
An index is trained once and then only grows, in whole blocks of rows; the rest, less than a block, is searched exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pixelis.config import Config
from pixelis.errors import MemoryFileError
from pixelis.retrieval.collection import Progress, silent
from pixelis.retrieval.keys import Floats, mixed, weighted

Rows = NDArray[np.int64]
BLOCK = 1024
"""Rows that are coded together: the same ones whenever and however often the memory was opened between."""
CHUNK = 8192
"""Keys in full precision at a time while an index is made."""


class IndexConfig(Config):
    """How a memory is searched; the paper's values where it gives them (tab:supp_index_conf)."""

    kind: Literal["auto", "exact", "ivfpq", "hnsw-text"] = "auto"
    """`auto`: exact below `exact_below` rows, IVF-PQ from there. `hnsw-text`: the text half alone (ablation)."""
    lambda_pix: float = Field(default=0.5, ge=0.0, le=1.0)
    """Weight of the visual half; the text half has the rest (subsec:ttrl: equal weights)."""
    exact_below: int = Field(default=20_000, ge=1)
    """Rows under which every key is compared: up to here that is as quick as an index."""
    n_list: int | None = Field(default=None, ge=1)
    """Coarse cells; None: the power of two nearest to 4·√N, at most the paper's 4096 (which is 1.25 M's)."""
    n_probe: int | None = Field(default=None, ge=1)
    """Cells that are searched; None: three of sixteen, at least the paper's 32."""
    m: int = Field(default=64, ge=1)
    """Bytes of a product code."""
    bits: Literal[4, 8] = 4
    """Of each part of a code: 8 is the paper's, m parts; 4 has twice as many, whose tables stay in registers."""
    opq: bool = True
    """Learn a rotation before coding."""
    opq_dimensions: int = Field(default=768, ge=1)
    """What OPQ rotates into; the paper's size for CPUs."""
    opq_iterations: int = Field(default=0, ge=0)
    """Alternations of coding and Procrustes after the parametric start (the paper has 200 epochs)."""
    opq_keys: int = Field(default=16_384, ge=256)
    """Keys that OPQ learns from: 64 for each of 256 codes."""
    train_keys: int = Field(default=164_000, ge=256)
    """Most keys that cells and codes are learned from; 40 for each cell are enough."""
    iterations: int = Field(default=20, ge=1)
    """Of k-means."""
    rerank: int | None = Field(default=None, ge=1)
    """Rows that the exact comparison orders; None: one in 800, at least the paper's 256."""
    hnsw_m: int = Field(default=32, ge=2)
    hnsw_ef_construction: int = Field(default=80, ge=1)
    hnsw_ef_search: int = Field(default=128, ge=1)
    seed: int = Field(default=0, ge=0)

    def kind_for(self, rows: int) -> Literal["exact", "ivfpq", "hnsw-text"]:
        if self.kind == "auto":
            return "exact" if rows < self.exact_below else "ivfpq"
        return self.kind

    def cells(self, rows: int) -> int:
        if self.n_list is not None:
            return min(self.n_list, max(1, rows))
        return min(4096, max(1, 2 ** round(np.log2(max(1.0, 4.0 * np.sqrt(rows))))))

    @property
    def parts(self) -> int:
        """Of a code."""
        return self.m * 8 // self.bits

    def probes(self, cells: int) -> int:
        return self.n_probe or max(32, 3 * cells // 16)

    def proposed(self, rows: int) -> int:
        """Rows that codes propose."""
        return self.rerank or max(256, rows // 800)

    @property
    def made_from(self) -> dict[str, Any]:
        """The settings that an index file depends on; the others may change from search to search."""
        searching = {"kind", "exact_below", "n_probe", "rerank", "hnsw_ef_search"}
        return self.model_dump(mode="json", exclude=searching)


class Found(NamedTuple):
    """Rows and similarities of each query, best first, ties to the earlier row; −1 and −inf where there are fewer."""

    rows: Rows
    """(Q, k)."""
    similarity: Floats
    """(Q, k), the convex mix of cosines."""


class Exact:
    """Every row compared, in half precision as the keys lie on the disk."""

    kind = "exact"

    def __init__(self, dimensions: int) -> None:
        self._flat = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        self._first = 0

    def __len__(self) -> int:
        return int(self._flat.ntotal)

    def start(self, first: int) -> None:
        """Forget everything; the next row that is added is number `first`."""
        self._flat.reset()
        self._first = first

    def add(self, keys: NDArray[np.float16]) -> None:
        if len(keys):
            codes = np.ascontiguousarray(keys, "<f2").view(np.uint8)  # QT_fp16 keeps these very bytes
            self._flat.add_sa_codes(codes)

    def search(self, queries: Floats, k: int, allowed: NDArray[np.bool_] | None) -> Found:
        """`allowed` is over all rows of the memory."""
        params = None
        if allowed is not None:
            own = allowed[self._first : self._first + len(self)]
            params = faiss.SearchParameters(sel=selector(own))
        similarity, rows = self._flat.search(queries, k, params=params)
        return Found(np.where(rows >= 0, rows + self._first, -1), similarity)


def selector(allowed: NDArray[np.bool_]) -> Any:
    """FAISS's own mask: a bit for each row."""
    return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


class Coded:
    """A FAISS index over mixed keys (IVF-PQ, with OPQ or without) or over text halves (HNSW): it proposes rows."""

    def __init__(
        self,
        index: Any,
        kind: Literal["ivfpq", "hnsw-text"],
        text_dimensions: int,
        lambda_pix: float,
        *,
        trained: int | None = None,
    ) -> None:
        self.index, self.kind = index, kind
        self._text, self._lambda = text_dimensions, lambda_pix
        self.trained = trained
        """Rows that there were when it was made: it learned from them, and cannot forget a part of them."""

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def prepared(self, keys: NDArray[np.floating]) -> Floats:
        """Keys as this index sees them."""
        if self.kind == "hnsw-text":
            return np.ascontiguousarray(keys[:, : self._text], np.float32)
        return np.ascontiguousarray(mixed(keys, self._text, self._lambda))

    def add(self, keys: NDArray[np.float16]) -> None:
        if len(keys):
            self.index.add(self.prepared(keys))

    def propose(self, queries: Floats, count: int, config: IndexConfig, allowed: NDArray[np.bool_] | None) -> Rows:
        """(Q, count) rows, unordered as far as the caller is concerned; −1 where there are fewer."""
        sel = None if allowed is None else selector(allowed[: len(self)])
        if self.kind == "hnsw-text":
            params = faiss.SearchParametersHNSW(sel=sel, efSearch=max(config.hnsw_ef_search, count))
        else:
            params = faiss.SearchParametersIVF(sel=sel, nprobe=config.probes(self.inner.nlist))
            if isinstance(self.index, faiss.IndexPreTransform):
                params = faiss.SearchParametersPreTransform(index_params=params)
        return self.index.search(self.prepared(queries), min(count, max(1, len(self))), params=params)[1]

    def shrink(self, rows: int) -> bool:
        """Forget the rows from `rows` on, in whole blocks; False where it learned from them, or cannot forget."""
        trained = len(self) if self.trained is None else self.trained
        if len(self) <= rows:
            return True
        if rows < trained or self.kind == "hnsw-text":
            return False
        inner = self.inner
        inner.remove_ids(faiss.IDSelectorRange(trained + (rows - trained) // BLOCK * BLOCK, 2**62))
        self.index.ntotal = inner.ntotal
        return True

    def erase(self, rows: Collection[int]) -> bool:
        """Blank the codes of deleted rows, which tell what a key was like; whether there was anything to blank."""
        wanted = [row for row in rows if row < len(self)]
        if not wanted:
            return False
        if self.kind == "hnsw-text":
            size = len(self) * self._text
            vectors = faiss.rev_swig_ptr(faiss.downcast_index(self.index.storage).get_xb(), size)
            blank = vectors.reshape(len(self), self._text)
            changed = bool(blank[wanted].any())
            blank[wanted] = 0.0
            return changed
        lists, changed = faiss.downcast_InvertedLists(self.inner.invlists), False
        for cell in range(self.inner.nlist):
            count = lists.list_size(cell)
            ids = faiss.rev_swig_ptr(lists.get_ids(cell), count) if count else np.zeros(0, np.int64)
            for place in np.flatnonzero(np.isin(ids, wanted)).tolist():
                changed |= blanked(lists, cell, place, self.inner.code_size)
        return changed

    @property
    def inner(self) -> Any:
        """The index behind the rotation, where there is one."""
        rotated = isinstance(self.index, faiss.IndexPreTransform)
        return faiss.downcast_index(self.index.index) if rotated else self.index


def blanked(lists: Any, cell: int, place: int, code_size: int) -> bool:
    """Zeros for one code of a cell; whether it was anything else."""
    count = lists.list_size(cell)
    if isinstance(lists, faiss.BlockInvertedLists):  # 32 codes of 4 bits lie woven into one block
        blocks = -(-count // lists.n_per_block)
        woven = faiss.rev_swig_ptr(lists.get_codes(cell), blocks * lists.block_size).reshape(blocks, -1)
        code = lists.packer.unpack_1(woven, place)
        lists.packer.pack_1(np.zeros_like(code), place, woven)
        return bool(code.any())
    flat = faiss.rev_swig_ptr(lists.get_codes(cell), count * code_size)
    own = flat[place * code_size : (place + 1) * code_size]
    changed = bool(own.any())
    own[:] = 0
    return changed


def train(
    keys: NDArray[np.float16],
    config: IndexConfig,
    text_dimensions: int,
    *,
    kind: Literal["ivfpq", "hnsw-text"],
    progress: Progress = silent,
) -> Coded:
    """Learn rotation, cells and codes from a sample of the keys, then code them all. The same keys, the same index."""
    dimensions = keys.shape[1]
    if kind == "hnsw-text":
        graph = faiss.IndexHNSWFlat(text_dimensions, config.hnsw_m, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = config.hnsw_ef_construction
        coded = Coded(graph, kind, text_dimensions, config.lambda_pix)
    else:
        require_divisible(config, dimensions)
        coded = Coded(_trained(keys, config, text_dimensions, progress), kind, text_dimensions, config.lambda_pix)
    for start, part in chunks(keys):
        coded.add(part)
        progress("coding keys", start + len(part), len(keys))
    coded.trained = len(keys)
    return coded


def _trained(keys: NDArray[np.float16], config: IndexConfig, text_dimensions: int, progress: Progress) -> Any:
    rng = np.random.default_rng(config.seed)
    cells = config.cells(len(keys))
    wanted = min(len(keys), config.train_keys, max(40 * cells, 64 * 256))
    sample = np.sort(rng.permutation(len(keys))[:wanted])
    width = config.opq_dimensions if config.opq else keys.shape[1]
    rotation = None
    if config.opq:
        progress("learning the rotation", 0, 1)
        few = sample[np.sort(rng.permutation(wanted)[: config.opq_keys])]
        rotation = rotating(mixed(keys[few], text_dimensions, config.lambda_pix), config)
        progress("learning the rotation", 1, 1)
    learned = np.empty((wanted, width), np.float32)  # 0.5 GB of 164,000 keys; never all of them at full width
    for start in range(0, wanted, CHUNK):  # sorted rows, so that the disk is read forwards
        part = mixed(keys[sample[start : start + CHUNK]], text_dimensions, config.lambda_pix)
        learned[start : start + CHUNK] = rotation.apply(part) if rotation is not None else part
    metric = faiss.METRIC_INNER_PRODUCT
    made = faiss.IndexIVFPQ if config.bits == 8 else faiss.IndexIVFPQFastScan
    inner = made(faiss.IndexFlat(width, metric), width, cells, config.parts, config.bits, metric)
    inner.by_residual = True
    inner.cp.niter, inner.cp.seed, inner.cp.spherical = config.iterations, config.seed + 1, True
    for learner in (inner.cp, inner.pq.cp):
        learner.min_points_per_centroid = 1  # FAISS would print a line for each part of a small memory's codes
    progress("learning cells and codes", 0, 1)
    inner.train(learned)
    progress("learning cells and codes", 1, 1)
    return inner if rotation is None else faiss.IndexPreTransform(rotation, inner)


def rotating(sample: Floats, config: IndexConfig) -> Any:
    """OPQ (ge2013opq) as a FAISS transform. Parametric start: principal directions, dealt out to the parts so that
    the products of their variances are equal, which is optimal for Gaussian keys and takes seconds; FAISS's own starts
    at random and takes minutes. Moments are not centred: inner products are to be kept.
    """
    variance, directions = np.linalg.eigh((sample.T @ sample).astype(np.float64) / len(sample))
    variance, directions = variance[::-1], directions[:, ::-1]  # largest first
    each = config.opq_dimensions // config.parts
    parts: list[list[int]] = [[] for _ in range(config.parts)]
    filled = np.zeros(config.parts)
    for number in range(config.opq_dimensions):
        open_parts = [p for p in range(config.parts) if len(parts[p]) < each]
        part = min(open_parts, key=lambda p: filled[p])
        parts[part].append(number)
        filled[part] += np.log(max(variance[number], 1e-12))
    matrix = directions[:, [n for part in parts for n in part]].T.astype(np.float32)  # (width, dimensions)
    for _ in range(config.opq_iterations):
        turned = sample @ matrix.T
        codes = faiss.ProductQuantizer(config.opq_dimensions, config.parts, config.bits)
        codes.cp.niter, codes.cp.seed, codes.cp.min_points_per_centroid = 8, config.seed + 1, 1
        codes.train(turned)
        left, _, right = np.linalg.svd(codes.decode(codes.compute_codes(turned)).T @ sample, full_matrices=False)
        matrix = np.ascontiguousarray(left @ right, np.float32)  # Procrustes
    transform = faiss.LinearTransform(sample.shape[1], config.opq_dimensions, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix).ravel(), transform.A)
    transform.is_trained = True
    return transform


def require_divisible(config: IndexConfig, dimensions: int) -> None:
    """Codes cut a key into equal parts."""
    width = config.opq_dimensions if config.opq else dimensions
    if width % config.parts or (config.opq and width > dimensions):
        raise MemoryFileError(
            f"keys of {dimensions} values{f' rotated into {width}' if config.opq else ''} cannot be cut into "
            f"{config.parts} equal parts (m = {config.m}, bits = {config.bits}); choose m and opq_dimensions so that "
            "they can"
        )


def chunks(keys: NDArray[np.float16], size: int = CHUNK) -> Iterator[tuple[int, NDArray[np.float16]]]:
    for start in range(0, len(keys), size):
        yield start, keys[start : start + size]


def rerank(keys: NDArray[np.float16], query: Floats, rows: Rows, k: int) -> tuple[Rows, Floats]:
    """The k best of the proposed rows by the exact mix; `query` is weighted."""
    rows = np.unique(rows[rows >= 0])  # in order, as the disk is read, and as ties are told apart
    if not len(rows):
        return rows, np.zeros(0, np.float32)
    own = Exact(keys.shape[1])
    own.add(keys[rows])
    found = own.search(query[None], min(k, len(rows)), None)
    return rows[found.rows[0]], found.similarity[0]


class Searcher:
    """All that is searched of a memory: a coded part, if there is one, and exact rows behind it."""

    def __init__(self, config: IndexConfig, text_dimensions: int, dimensions: int, coded: Coded | None) -> None:
        self.config, self._text, self.coded = config, text_dimensions, coded
        self._exact = Exact(dimensions)
        self._exact.start(len(coded) if coded else 0)

    def follow(self, keys: NDArray[np.float16]) -> None:
        """Take in rows that were appended since; whole blocks are coded where there is an index that can."""
        coded = 0 if self.coded is None else len(self.coded)
        if self.coded is not None and len(keys) - coded >= BLOCK:
            while len(keys) - coded >= BLOCK:
                self.coded.add(keys[coded : coded + BLOCK])
                coded += BLOCK
            self._exact.start(coded)
        self._exact.add(keys[coded + len(self._exact) :])

    def rollback(self, keys: NDArray[np.float16]) -> bool:
        """Only the rows of `keys` stay; False where the index must be made again."""
        if self.coded is not None and not self.coded.shrink(len(keys)):
            return False
        self._exact.start(len(self.coded) if self.coded else 0)
        self.follow(keys)
        return True

    def search(
        self, keys: NDArray[np.float16], queries: Floats, k: int, allowed: NDArray[np.bool_] | None = None
    ) -> Found:
        """The k nearest rows of each bare query key, (Q, D); `allowed` masks rows out before they are proposed."""
        count = len(queries)
        found = Found(np.full((count, k), -1, np.int64), np.full((count, k), -np.inf, np.float32))
        if not len(keys) or not count:
            return found
        bare_text = self.config.kind == "hnsw-text"
        query = weighted(queries, self._text, 0.0 if bare_text else self.config.lambda_pix)
        near = self._exact.search(query, k, allowed).rows if len(self._exact) else found.rows
        proposed = np.full((count, 0), -1, np.int64)
        if self.coded is not None:
            most = max(self.config.proposed(len(self.coded)), k)
            proposed = self.coded.propose(queries, most, self.config, allowed)
        for number in range(count):
            rows, similarity = rerank(keys, query[number], np.concatenate([near[number], proposed[number]]), k)
            found.rows[number, : len(rows)] = rows
            found.similarity[number, : len(rows)] = similarity
        return found
