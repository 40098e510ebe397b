"""Nearest-neighbour search: exact for small memories, OPQ + IVF-PQ for large ones, HNSW for the text-only ablation
(supp:retrieval_index, tab:supp_index_conf).

Proposed rows are re-ranked by the exact mix of cosines over the keys on disk, because product codes alone have a
recall@8 of about 0.4. The exact index and the re-rank use the same FAISS routine on half-precision keys, and agree to
the bit. An index grows in whole blocks of rows; the remainder, less than a block, is searched exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pixelis.core.config import Config
from pixelis.core.errors import MemoryFileError
from pixelis.dedup.media_collection import ProgressCallback, no_progress
from pixelis.memory.keys import Floats, mix_halves, weight_query

RowIds = NDArray[np.int64]
BLOCK = 1024
"""Number of rows that are coded together, so that codes do not depend on how often the memory was opened."""
CHUNK_KEYS = 8192
"""Number of keys converted to full precision at a time while an index is built."""


class IndexConfig(Config):
    """Settings of the search, with the paper's values where it gives them (tab:supp_index_conf)."""

    kind: Literal["auto", "exact", "ivfpq", "hnsw-text"] = "auto"
    """`auto`: exact below `exact_below` rows, else IVF-PQ. `hnsw-text`: the text half alone (ablation)."""
    lambda_pix: float = Field(default=0.5, ge=0.0, le=1.0)
    """Weight of the visual half; the text half has the rest (subsec:ttrl: equal weights)."""
    exact_below: int = Field(default=20_000, ge=1)
    """Number of rows below which every key is compared, which is then as fast as an index."""
    n_list: int | None = Field(default=None, ge=1)
    """Coarse cells; None: the power of two nearest to 4·√N, at most the paper's 4096 (reached at 1.25 M keys)."""
    n_probe: int | None = Field(default=None, ge=1)
    """Number of cells to search; None: three of sixteen, at least the paper's 32."""
    m: int = Field(default=64, ge=1)
    """Bytes of a product code."""
    bits: Literal[4, 8] = 4
    """Bits of each part of a code. 8, the paper's, gives m parts; 4 gives 2m, whose tables fit in registers."""
    opq: bool = True
    """Learn a rotation before coding."""
    opq_dimensions: int = Field(default=768, ge=1)
    """Output dimensions of OPQ; the paper's value for CPUs."""
    opq_iterations: int = Field(default=0, ge=0)
    """Alternations of coding and Procrustes after the parametric start (the paper has 200 epochs)."""
    opq_keys: int = Field(default=16_384, ge=256)
    """Number of keys to train OPQ on: 64 for each of 256 codes."""
    train_keys: int = Field(default=164_000, ge=256)
    """Maximum number of keys to train cells and codes on; 40 per cell are enough."""
    iterations: int = Field(default=20, ge=1)
    """Iterations of k-means."""
    rerank: int | None = Field(default=None, ge=1)
    """Number of rows to re-rank exactly; None: one in 800, at least the paper's 256."""
    hnsw_m: int = Field(default=32, ge=2)
    hnsw_ef_construction: int = Field(default=80, ge=1)
    hnsw_ef_search: int = Field(default=128, ge=1)
    seed: int = Field(default=0, ge=0)

    def kind_for(self, rows: int) -> Literal["exact", "ivfpq", "hnsw-text"]:
        if self.kind == "auto":
            return "exact" if rows < self.exact_below else "ivfpq"
        return self.kind

    def num_cells(self, rows: int) -> int:
        if self.n_list is not None:
            return min(self.n_list, max(1, rows))
        return min(4096, max(1, 2 ** round(np.log2(max(1.0, 4.0 * np.sqrt(rows))))))

    @property
    def num_subquantizers(self) -> int:
        """Number of parts of a code."""
        return self.m * 8 // self.bits

    def num_probes(self, cells: int) -> int:
        return self.n_probe or max(32, 3 * cells // 16)

    def num_candidates(self, rows: int) -> int:
        """Number of rows that the codes propose."""
        return self.rerank or max(256, rows // 800)

    @property
    def build_settings(self) -> dict[str, Any]:
        """The settings that an index file depends on; the others may change between searches."""
        search_only = {"kind", "exact_below", "n_probe", "rerank", "hnsw_ef_search"}
        return self.model_dump(mode="json", exclude=search_only)


class SearchResult(NamedTuple):
    """Rows and similarities of each query, best first, ties to the earlier row; padded with −1 and −inf."""

    rows: RowIds
    """(Q, k)."""
    similarity: Floats
    """(Q, k), the convex mix of cosines."""


class ExactIndex:
    """Compares every row, in half precision like the keys on disk."""

    kind = "exact"

    def __init__(self, dimensions: int) -> None:
        self._flat = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        self._first_row = 0

    def __len__(self) -> int:
        return int(self._flat.ntotal)

    def reset(self, first_row: int) -> None:
        """Remove all rows; the next row to be added has number `first_row`."""
        self._flat.reset()
        self._first_row = first_row

    def add(self, keys: NDArray[np.float16]) -> None:
        if len(keys):
            codes = np.ascontiguousarray(keys, "<f2").view(np.uint8)  # QT_fp16 stores exactly these bytes
            self._flat.add_sa_codes(codes)

    def search(self, queries: Floats, k: int, allowed: NDArray[np.bool_] | None) -> SearchResult:
        """`allowed` is a mask over all rows of the memory."""
        params = None
        if allowed is not None:
            local_mask = allowed[self._first_row : self._first_row + len(self)]
            params = faiss.SearchParameters(sel=make_selector(local_mask))
        similarity, rows = self._flat.search(queries, k, params=params)
        return SearchResult(np.where(rows >= 0, rows + self._first_row, -1), similarity)


def make_selector(allowed: NDArray[np.bool_]) -> Any:
    """A FAISS selector with one bit per row."""
    return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


class ApproximateIndex:
    """A FAISS index over mixed keys (IVF-PQ, with or without OPQ) or over text halves (HNSW) that proposes rows."""

    def __init__(
        self,
        index: Any,
        kind: Literal["ivfpq", "hnsw-text"],
        text_dimensions: int,
        lambda_pix: float,
        *,
        trained_rows: int | None = None,
    ) -> None:
        self.index, self.kind = index, kind
        self._text, self._lambda = text_dimensions, lambda_pix
        self.trained_rows = trained_rows
        """Number of rows that it was trained on, which it cannot remove."""

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def to_index_vectors(self, keys: NDArray[np.floating]) -> Floats:
        """The vectors of keys in this index."""
        if self.kind == "hnsw-text":
            return np.ascontiguousarray(keys[:, : self._text], np.float32)
        return np.ascontiguousarray(mix_halves(keys, self._text, self._lambda))

    def add(self, keys: NDArray[np.float16]) -> None:
        if len(keys):
            self.index.add(self.to_index_vectors(keys))

    def propose(self, queries: Floats, count: int, config: IndexConfig, allowed: NDArray[np.bool_] | None) -> RowIds:
        """(Q, count) rows in no particular order, padded with −1."""
        sel = None if allowed is None else make_selector(allowed[: len(self)])
        if self.kind == "hnsw-text":
            params = faiss.SearchParametersHNSW(sel=sel, efSearch=max(config.hnsw_ef_search, count))
        else:
            params = faiss.SearchParametersIVF(sel=sel, nprobe=config.num_probes(self.inner_index.nlist))
            if isinstance(self.index, faiss.IndexPreTransform):
                params = faiss.SearchParametersPreTransform(index_params=params)
        return self.index.search(self.to_index_vectors(queries), min(count, max(1, len(self))), params=params)[1]

    def truncate(self, rows: int) -> bool:
        """Remove the rows from `rows` on, in whole blocks; False if the index cannot, or was trained on them."""
        trained_rows = len(self) if self.trained_rows is None else self.trained_rows
        if len(self) <= rows:
            return True
        if rows < trained_rows or self.kind == "hnsw-text":
            return False
        inner_index = self.inner_index
        inner_index.remove_ids(faiss.IDSelectorRange(trained_rows + (rows - trained_rows) // BLOCK * BLOCK, 2**62))
        self.index.ntotal = inner_index.ntotal
        return True

    def erase(self, rows: Collection[int]) -> bool:
        """Zero the codes of deleted rows, because codes reveal keys; returns whether any code changed."""
        targets = [row for row in rows if row < len(self)]
        if not targets:
            return False
        if self.kind == "hnsw-text":
            size = len(self) * self._text
            vectors = faiss.rev_swig_ptr(faiss.downcast_index(self.index.storage).get_xb(), size)
            vectors_by_row = vectors.reshape(len(self), self._text)
            changed = bool(vectors_by_row[targets].any())
            vectors_by_row[targets] = 0.0
            return changed
        lists, changed = faiss.downcast_InvertedLists(self.inner_index.invlists), False
        for cell in range(self.inner_index.nlist):
            count = lists.list_size(cell)
            ids = faiss.rev_swig_ptr(lists.get_ids(cell), count) if count else np.zeros(0, np.int64)
            for position in np.flatnonzero(np.isin(ids, targets)).tolist():
                changed |= blank_code(lists, cell, position, self.inner_index.code_size)
        return changed

    @property
    def inner_index(self) -> Any:
        """The index behind the rotation, if there is one."""
        rotated = isinstance(self.index, faiss.IndexPreTransform)
        return faiss.downcast_index(self.index.index) if rotated else self.index


def blank_code(lists: Any, cell: int, position: int, code_size: int) -> bool:
    """Zero one code of a cell; returns whether it changed."""
    count = lists.list_size(cell)
    if isinstance(lists, faiss.BlockInvertedLists):  # 32 codes of 4 bits are interleaved in one block
        blocks = -(-count // lists.n_per_block)
        packed_block = faiss.rev_swig_ptr(lists.get_codes(cell), blocks * lists.block_size).reshape(blocks, -1)
        code = lists.packer.unpack_1(packed_block, position)
        lists.packer.pack_1(np.zeros_like(code), position, packed_block)
        return bool(code.any())
    flat = faiss.rev_swig_ptr(lists.get_codes(cell), count * code_size)
    code_bytes = flat[position * code_size : (position + 1) * code_size]
    changed = bool(code_bytes.any())
    code_bytes[:] = 0
    return changed


def train_index(
    keys: NDArray[np.float16],
    config: IndexConfig,
    text_dimensions: int,
    *,
    kind: Literal["ivfpq", "hnsw-text"],
    progress: ProgressCallback = no_progress,
) -> ApproximateIndex:
    """Train rotation, cells and codes on a sample of the keys, then code all keys. Deterministic."""
    dimensions = keys.shape[1]
    if kind == "hnsw-text":
        graph = faiss.IndexHNSWFlat(text_dimensions, config.hnsw_m, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = config.hnsw_ef_construction
        approx_index = ApproximateIndex(graph, kind, text_dimensions, config.lambda_pix)
    else:
        require_divisible(config, dimensions)
        approx_index = ApproximateIndex(
            _train_ivfpq(keys, config, text_dimensions, progress), kind, text_dimensions, config.lambda_pix
        )
    for start, batch in iter_chunks(keys):
        approx_index.add(batch)
        progress("coding keys", start + len(batch), len(keys))
    approx_index.trained_rows = len(keys)
    return approx_index


def _train_ivfpq(
    keys: NDArray[np.float16], config: IndexConfig, text_dimensions: int, progress: ProgressCallback
) -> Any:
    rng = np.random.default_rng(config.seed)
    cells = config.num_cells(len(keys))
    sample_size = min(len(keys), config.train_keys, max(40 * cells, 64 * 256))
    sample = np.sort(rng.permutation(len(keys))[:sample_size])
    width = config.opq_dimensions if config.opq else keys.shape[1]
    rotation = None
    if config.opq:
        progress("learning the rotation", 0, 1)
        opq_sample = sample[np.sort(rng.permutation(sample_size)[: config.opq_keys])]
        rotation = train_opq(mix_halves(keys[opq_sample], text_dimensions, config.lambda_pix), config)
        progress("learning the rotation", 1, 1)
    training_vectors = np.empty((sample_size, width), np.float32)  # 0.5 GB of 164,000 keys
    for start in range(0, sample_size, CHUNK_KEYS):  # in row order, so that the disk is read sequentially
        batch = mix_halves(keys[sample[start : start + CHUNK_KEYS]], text_dimensions, config.lambda_pix)
        training_vectors[start : start + CHUNK_KEYS] = rotation.apply(batch) if rotation is not None else batch
    metric = faiss.METRIC_INNER_PRODUCT
    index_class = faiss.IndexIVFPQ if config.bits == 8 else faiss.IndexIVFPQFastScan
    inner = index_class(faiss.IndexFlat(width, metric), width, cells, config.num_subquantizers, config.bits, metric)
    inner.by_residual = True
    inner.cp.niter, inner.cp.seed, inner.cp.spherical = config.iterations, config.seed + 1, True
    for clustering in (inner.cp, inner.pq.cp):
        clustering.min_points_per_centroid = 1  # silences FAISS's warnings for small memories
    progress("learning cells and codes", 0, 1)
    inner.train(training_vectors)
    progress("learning cells and codes", 1, 1)
    return inner if rotation is None else faiss.IndexPreTransform(rotation, inner)


def train_opq(sample: Floats, config: IndexConfig) -> Any:
    """OPQ (ge2013opq) as a FAISS transform. Parametric start: principal directions, distributed over the parts so that
    the products of their variances are equal, which is optimal for Gaussian keys and takes seconds; FAISS's own OPQ
    starts at random and takes minutes. Moments are not centred, in order to keep inner products.
    """
    variance, directions = np.linalg.eigh((sample.T @ sample).astype(np.float64) / len(sample))
    variance, directions = variance[::-1], directions[:, ::-1]  # largest first
    part_size = config.opq_dimensions // config.num_subquantizers
    parts: list[list[int]] = [[] for _ in range(config.num_subquantizers)]
    log_variance = np.zeros(config.num_subquantizers)
    for number in range(config.opq_dimensions):
        open_parts = [p for p in range(config.num_subquantizers) if len(parts[p]) < part_size]
        part = min(open_parts, key=lambda p: log_variance[p])
        parts[part].append(number)
        log_variance[part] += np.log(max(variance[number], 1e-12))
    matrix = directions[:, [n for part in parts for n in part]].T.astype(np.float32)  # (width, dimensions)
    for _ in range(config.opq_iterations):
        rotated = sample @ matrix.T
        codes = faiss.ProductQuantizer(config.opq_dimensions, config.num_subquantizers, config.bits)
        codes.cp.niter, codes.cp.seed, codes.cp.min_points_per_centroid = 8, config.seed + 1, 1
        codes.train(rotated)
        left, _, right = np.linalg.svd(codes.decode(codes.compute_codes(rotated)).T @ sample, full_matrices=False)
        matrix = np.ascontiguousarray(left @ right, np.float32)  # Procrustes
    transform = faiss.LinearTransform(sample.shape[1], config.opq_dimensions, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix).ravel(), transform.A)
    transform.is_trained = True
    return transform


def require_divisible(config: IndexConfig, dimensions: int) -> None:
    """MemoryFileError if a key cannot be divided into equal parts of a code."""
    width = config.opq_dimensions if config.opq else dimensions
    if width % config.num_subquantizers or (config.opq and width > dimensions):
        raise MemoryFileError(
            f"keys of {dimensions} values{f' rotated into {width}' if config.opq else ''} cannot be divided into "
            f"{config.num_subquantizers} equal parts (m = {config.m}, bits = {config.bits}); choose another m "
            "or opq_dimensions"
        )


def iter_chunks(keys: NDArray[np.float16], size: int = CHUNK_KEYS) -> Iterator[tuple[int, NDArray[np.float16]]]:
    for start in range(0, len(keys), size):
        yield start, keys[start : start + size]


def rerank(keys: NDArray[np.float16], query: Floats, rows: RowIds, k: int) -> tuple[RowIds, Floats]:
    """The k best of the proposed rows by the exact mix of cosines; `query` is weighted."""
    rows = np.unique(rows[rows >= 0])  # in row order, for the disk and for ties
    if not len(rows):
        return rows, np.zeros(0, np.float32)
    exact = ExactIndex(keys.shape[1])
    exact.add(keys[rows])
    result = exact.search(query[None], min(k, len(rows)), None)
    return rows[result.rows[0]], result.similarity[0]


class Searcher:
    """Searches a memory: a coded part, if there is one, and the remaining rows exactly."""

    def __init__(
        self, config: IndexConfig, text_dimensions: int, dimensions: int, approx_index: ApproximateIndex | None
    ) -> None:
        self.config, self._text, self.approx_index = config, text_dimensions, approx_index
        self._exact_index = ExactIndex(dimensions)
        self._exact_index.reset(len(approx_index) if approx_index else 0)

    def add_new_rows(self, keys: NDArray[np.float16]) -> None:
        """Add rows that were appended since; whole blocks are coded if there is an approximate index."""
        num_coded = 0 if self.approx_index is None else len(self.approx_index)
        if self.approx_index is not None and len(keys) - num_coded >= BLOCK:
            while len(keys) - num_coded >= BLOCK:
                self.approx_index.add(keys[num_coded : num_coded + BLOCK])
                num_coded += BLOCK
            self._exact_index.reset(num_coded)
        self._exact_index.add(keys[num_coded + len(self._exact_index) :])

    def rollback(self, keys: NDArray[np.float16]) -> bool:
        """Keep only the rows of `keys`; False if the index must be built again."""
        if self.approx_index is not None and not self.approx_index.truncate(len(keys)):
            return False
        self._exact_index.reset(len(self.approx_index) if self.approx_index else 0)
        self.add_new_rows(keys)
        return True

    def search(
        self, keys: NDArray[np.float16], queries: Floats, k: int, allowed: NDArray[np.bool_] | None = None
    ) -> SearchResult:
        """The k nearest rows of each unweighted query key, (Q, D); rows outside `allowed` are never proposed."""
        count = len(queries)
        result = SearchResult(np.full((count, k), -1, np.int64), np.full((count, k), -np.inf, np.float32))
        if not len(keys) or not count:
            return result
        text_only = self.config.kind == "hnsw-text"
        query = weight_query(queries, self._text, 0.0 if text_only else self.config.lambda_pix)
        exact_rows = self._exact_index.search(query, k, allowed).rows if len(self._exact_index) else result.rows
        candidate_rows = np.full((count, 0), -1, np.int64)
        if self.approx_index is not None:
            num_candidates = max(self.config.num_candidates(len(self.approx_index)), k)
            candidate_rows = self.approx_index.propose(queries, num_candidates, self.config, allowed)
        for number in range(count):
            rows, similarity = rerank(
                keys, query[number], np.concatenate([exact_rows[number], candidate_rows[number]]), k
            )
            result.rows[number, : len(rows)] = rows
            result.similarity[number, : len(rows)] = similarity
        return result
