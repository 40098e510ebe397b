"""Step embeddings E_t: footprints on the token grid, pooling, unit norm, collapse (supp:et_dynamics, eq:embed_Et).

g_φ itself lives with the policy's heads; here are the formulas around it. Only `readout_loss` needs torch, and imports
it when called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.core.errors import PixelisError
from pixelis.core.geometry import Footprint, Mask, Size, Span, Track, UnitBox, to_pixels
from pixelis.equations.zscore import mean_and_std

if TYPE_CHECKING:
    from torch import Tensor

Floating = TypeVar("Floating", bound=np.floating[Any])

ACTIONS = ("SEG", "ZOOM", "TRK", "OCR", "TEMP", "PROP")
"""𝒜, in the order of the one-hot vector."""


class CollapseError(PixelisError):
    """Step embeddings are so similar that coherence would measure nothing."""


def box_cells(box_unit: UnitBox, grid: Size) -> NDArray[np.bool_]:
    """(height, width) cells of the token grid that a box touches; never empty (supp:et_dynamics)."""
    left, top, right, bottom = to_pixels(box_unit, grid).pixel_bounds(grid)
    cells = np.zeros((grid.height, grid.width), dtype=bool)
    cells[top:bottom, left:right] = True
    return cells


def mask_cells(mask: NDArray[np.bool_], grid: Size) -> NDArray[np.bool_]:
    """(height, width) cells of the token grid that a mask touches (supp:et_dynamics). An empty mask touches none."""
    height, width = mask.shape
    cells = np.zeros((grid.height, grid.width), dtype=bool)
    rows, columns = np.nonzero(mask)
    cells[((rows + 0.5) * grid.height / height).astype(int), ((columns + 0.5) * grid.width / width).astype(int)] = True
    # where the grid is finer than the mask, several cells lie under one pixel: look up the pixel of each cell too
    at_row = ((np.arange(grid.height) + 0.5) * height / grid.height).astype(int)
    at_column = ((np.arange(grid.width) + 0.5) * width / grid.width).astype(int)
    return cells | mask[np.ix_(at_row, at_column)]


def footprint_cells(footprint: Footprint, grid: Size, *, frame: int = 0) -> NDArray[np.bool_]:
    """The binary mask M of a footprint on the token grid of one frame (supp:et_dynamics).

    A box, mask or text lies on its own frame only, and a track on the frames that have its box; elsewhere M is zero.
    A span has no position, so it covers the frame: the caller selects the frames inside it.
    """
    empty = np.zeros((grid.height, grid.width), dtype=bool)
    if isinstance(footprint, Span):
        return ~empty
    if isinstance(footprint, Track):
        box = footprint.box_at(frame)
        return empty if box is None else box_cells(box, grid)
    if footprint.frame != frame:
        return empty
    if isinstance(footprint, Mask):
        return mask_cells(footprint.array, grid)
    return box_cells(footprint.box_unit, grid)


def dilate(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask grown by one cell on every side, corners included: a 3×3 kernel (supp:et_dynamics)."""
    padded = np.pad(mask, 1)
    height, width = mask.shape
    return np.any([padded[y : y + height, x : x + width] for y in range(3) for x in range(3)], axis=0)


def masked_mean(tokens: ArrayLike, mask: ArrayLike, *, min_cells: int = 9) -> NDArray[np.float64]:
    """v_t = Σ M·F / max(1, ΣM): masked mean pooling of tokens (H′, W′, d) over M (H′, W′) (supp:et_dynamics).

    A mask of fewer than nine cells is first dilated once. An all-zero mask gives the zero vector.
    """
    F, M = np.asarray(tokens, dtype=float), np.asarray(mask, dtype=bool)
    if F.ndim != 3 or F.shape[:2] != M.shape:
        raise ValueError(f"tokens have shape {F.shape} and the mask {M.shape}: expected (H, W, d) and (H, W)")
    if M.sum() < min_cells:
        M = dilate(M)
    return F[M].sum(axis=0) / max(1, int(M.sum()))


def temporal_mean(tokens: ArrayLike, masks: ArrayLike, *, min_cells: int = 9) -> NDArray[np.float64]:
    """Pool each frame of (F, H′, W′, d) over its mask, then average over frames (supp:et_dynamics).

    Frames whose mask is all zero are skipped; without any other frame, the zero vector.
    """
    frames, M = np.asarray(tokens, dtype=float), np.asarray(masks, dtype=bool)
    if frames.ndim != 4 or frames.shape[:3] != M.shape:
        raise ValueError(f"tokens have shape {frames.shape}, the masks {M.shape}: expected (F, H, W, d) and (F, H, W)")
    pooled = [
        masked_mean(frame, mask, min_cells=min_cells) for frame, mask in zip(frames, M, strict=True) if mask.any()
    ]
    return np.mean(pooled, axis=0) if pooled else np.zeros(frames.shape[3])


def onehot(action: str | None) -> NDArray[np.float64]:
    """onehot(a) over the six tools; all zero for None, the action before the first one (eq:embed_Et)."""
    if action is not None and action not in ACTIONS:
        raise ValueError(f"unknown action {action!r}, expected one of {', '.join(ACTIONS)} or None")
    return np.array([action == name for name in ACTIONS], dtype=float)


def head_inputs(visual: ArrayLike, text: ArrayLike, actions: Sequence[str | None]) -> NDArray[np.float64]:
    """[v_t ‖ x_t ‖ onehot(a)] for T steps: (T, d) and (T, d) give (T, 2d + 6) (eq:embed_Et, supp:et_dynamics).

    `actions` are a_{t−1} for g_φ and a_t for h_ψ.
    """
    v, x = np.asarray(visual, dtype=float), np.asarray(text, dtype=float)
    if v.ndim != 2 or x.ndim != 2 or not len(v) == len(x) == len(actions):
        raise ValueError(f"v is {v.shape}, x is {x.shape}, with {len(actions)} actions: expected one of each per step")
    codes = np.array([onehot(action) for action in actions]).reshape(len(actions), len(ACTIONS))
    return np.concatenate([v, x, codes], axis=1)


def unit_norm(projected: ArrayLike) -> NDArray[np.float64]:
    """E_t = g_φ(·) / ‖g_φ(·)‖₂ over the last axis (eq:embed_Et). The zero vector stays zero; NaN raises ValueError."""
    g = np.asarray(projected, dtype=float)
    if not np.isfinite(g).all():
        raise ValueError("g_φ gave NaN or infinity: expected finite step features")
    g = _scaled_rows(g)
    norm = np.linalg.norm(g, axis=-1, keepdims=True)
    return np.divide(g, norm, out=np.zeros_like(g), where=norm > 0)


def step_embeddings(
    visual: ArrayLike,
    text: ArrayLike,
    previous_actions: Sequence[str | None],
    g_phi: Callable[[NDArray[np.float64]], ArrayLike],
) -> NDArray[np.float64]:
    """E_t of a chain, (T, 512) with the paper's g_φ (eq:embed_Et). T = 0 calls g_φ with no rows."""
    return unit_norm(g_phi(head_inputs(visual, text, previous_actions)))


def readout_loss(
    readout: Tensor, v_next: Tensor, *, lambda_1: float = 0.5, lambda_2: float = 0.5, huber_delta: float = 1.0
) -> Tensor:
    """The loss of g_φ: a linear readout of E_t must predict v_{t+1} (supp:et_dynamics gives g_φ no loss of its own).

    λ₁·SmoothL1 + λ₂·(1 − cos), the feature part of the dynamics loss with its weights, so that E_t keeps what
    the next step will look at. Maximising R_coh through g_φ instead would collapse it. (n, d) each; no steps give 0.
    """
    from pixelis.equations.curiosity import feature_loss

    return feature_loss(readout, v_next, lambda_1=lambda_1, lambda_2=lambda_2, huber_delta=huber_delta)


def row_cosines(a: NDArray[Floating], b: NDArray[Floating]) -> NDArray[np.float64]:
    """cos(a_i, b_i) of two (n, d) arrays, giving (n,), computed in their own precision (supp:et_dynamics).

    A vector of length 0 has cosine 0 with everything; NaN or infinity in a vector gives NaN.
    """
    a, b = _scaled_rows(a), _scaled_rows(b)
    lengths = np.sqrt(np.einsum("nd,nd->n", a, a) * np.einsum("nd,nd->n", b, b))
    # a NaN length is not above 0, but must give NaN and not a cosine of 0
    zero = np.where(np.isnan(lengths), np.nan, 0.0)
    return np.divide(np.einsum("nd,nd->n", a, b), lengths, out=zero, where=lengths > 0)


class CosineStatistics(NamedTuple):
    """Mean and spread of adjacent cosines, for z-scoring with fixed numbers.

    Two sets that never mix: of E_t per task family, in the checkpoint (supp:et_dynamics), and of E_ext per evaluation
    task, in the evaluation's passport (subsec:eval_setup).
    """

    mean: float
    std: float
    samples: int

    def is_collapsed(self, *, floor: float = 0.02) -> bool:
        """Whether embeddings are so similar that cosines hardly differ; True for fewer than two cosines."""
        return not (self.samples >= 2 and self.std >= floor)


def cosine_statistics(cosines: ArrayLike) -> CosineStatistics:
    """Mean and population standard deviation of the finite cosines among these (supp:et_dynamics, subsec:eval_setup).

    The NaN of a first step is ignored. Equal cosines have spread 0; no cosines give 0, 0, 0. In both cases all z-scores
    are 0 and open no gate.
    """
    return CosineStatistics(*mean_and_std(cosines))


def require_spread(families: Mapping[str, CosineStatistics], *, floor: float = 0.02) -> None:
    """Raise CollapseError if a task family's E_t cosines have a spread under 0.02 (supp:et_dynamics).

    The paper has neither this check nor a loss for g_φ. A family with fewer than two cosines fails too.
    """
    collapsed = {name: s for name, s in families.items() if s.is_collapsed(floor=floor)}
    if collapsed:
        summary = ", ".join(f"{name} {s.std:.4f} over {s.samples}" for name, s in sorted(collapsed.items()))
        raise CollapseError(
            f"step embeddings have collapsed: spread of adjacent cosines is {summary}, expected at least {floor}; "
            "train g_φ longer on the readout loss or give it more varied chains"
        )


def _scaled_rows(vectors: NDArray[Floating]) -> NDArray[Floating]:
    """Each vector divided by its largest entry, so that squares of tiny or huge features do not under- or overflow.

    Vectors without such entries are returned unchanged.
    """
    peak = np.maximum(
        vectors.max(axis=-1, keepdims=True, initial=0.0), -vectors.min(axis=-1, keepdims=True, initial=0.0)
    )
    if ((peak > 1e-9) & (peak < 1e9)).all():
        return vectors
    with np.errstate(invalid="ignore"):  # infinity over infinity is NaN, as intended
        return np.divide(vectors, peak, out=vectors.copy(), where=peak > 0)
