"""Attention Matching: fewer keys and values that answer the same queries the same way.

After "Fast KV Compaction via Attention Matching" (arXiv 2602.16284), with the shared selection of Latent Briefing.
For reference queries q, keep keys C1 = K[S] and find a bias β and values C2 so that

    softmax(q C1ᵀ + β) C2  ≈  softmax(q Kᵀ) V      and      Σ_S exp(q·k + β)  ≈  Σ exp(q·k),

the attention *output* and the attention *mass*. Dividing the second by the full mass turns it into `A w = 1` with
A = softmax(q Kᵀ)[:, S] and w = exp(β): a box-constrained least-squares problem. Given w, C2 is a ridge regression.
Because the positions are the same for all heads, every layer and head has the same shapes: a few batched solves.

With few queries both problems are under-determined. Both are therefore regularised toward doing nothing: w toward
one, C2 toward the original values. The ridge is solved in its dual form, over queries instead of positions, by
Cholesky (batched LU is wrong in some CPU builds of PyTorch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentflow.kv.memory import in_halves

STEPS = 60
BLOCK_BYTES = 256 << 20
"""Attention probabilities that are held at once, in float32."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A compaction's result.

    Attributes:
        bias: per layer `(kv_heads, kept)`, or None where it was not fitted.
        values: per layer `(kv_heads, kept, value_dim)`.
        output_error: on queries that took no part in the fit, ‖approximate − full‖ / ‖full‖ of the attention output,
            mean over layers and heads.
        mass_error: |Σ_S w A − 1| there, likewise.
    """

    bias: tuple[Tensor, ...] | None
    values: tuple[Tensor, ...]
    output_error: float
    mass_error: float


def attention_scores(
    queries: Sequence[Tensor], keys: Sequence[Tensor], scale: float, biases: Sequence[Tensor] | None = None
) -> Tensor:
    """How much reference queries look at each position: root mean square of the attention probabilities.

    Args:
        queries: per layer `(heads, n, head_dim)`, after RoPE.
        keys: per layer `(kv_heads, T, head_dim)`.
        scale: of the logits.
        biases: per layer `(kv_heads, T)`, what the cache adds to its logits already; −inf leaves a position out.

    Returns:
        `(layers, heads, T)` in float32.
    """

    def of(layers: Sequence[int]) -> list[Tensor]:
        probabilities = _probabilities(_logits(queries, keys, layers, scale, _stacked(biases, layers)))
        b, kv_heads, rows, length = probabilities.shape
        n = queries[layers[0]].shape[1]
        rms = probabilities.reshape(b, kv_heads, rows // n, n, length).square_().mean(dim=3).sqrt_()
        return [rms.reshape(b, -1, length)]

    return torch.cat([each for layers in _blocks(queries, keys) for each in in_halves(of, layers)])


def fit(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    kept: Tensor,
    scale: float,
    *,
    moved: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    biases: Sequence[Tensor] | None = None,
    bias: bool = True,
    refit_values: bool = True,
    ridge: float = 0.01,
    bounds: tuple[float, float] = (0.1, 20.0),
    held_out: int = 4,
) -> Fit:
    """Fit β and the values of the kept positions to the reference queries.

    Args:
        queries, keys, biases: as in `attention_scores`; `values` per layer `(kv_heads, T, value_dim)`.
        kept: `(kept,)` positions for all heads, or `(layers, kv_heads, kept)` of each head's own.
        moved: the queries and the kept keys, per layer `(kv_heads, kept, head_dim)`, as they will meet, where RoPE
            has turned them to other positions by then; what they are to give stays what it was.
        bias: fit β, on top of `biases`; otherwise these stay.
        refit_values: fit the values; otherwise they stay.
        ridge: λ as a share of the mean of the Gram matrix's diagonal.
        bounds: box of w = exp(β).
        held_out: every so many-th query takes no part in the fit and measures it; 0 measures on all of them.
    """

    def of(layers: Sequence[int]) -> list[_Part]:
        added = _stacked(biases, layers)
        logits = _logits(queries, keys, layers, scale, added)
        v = torch.stack([values[layer] for layer in layers]).float()
        index = _index(kept, layers, logits)
        before = None if added is None else added.gather(2, index)
        probabilities = _probabilities(logits)
        if moved is None:
            a = probabilities.gather(3, index.unsqueeze(2).expand(-1, -1, logits.shape[2], -1))
        else:
            a = _logits(*moved, layers, scale, before).sub_(_mass(logits)).exp_()
        own = v.gather(2, index.unsqueeze(3).expand(-1, -1, -1, v.shape[3]))
        target = probabilities @ v
        use, check = _parts(queries[layers[0]].shape[1], probabilities.shape[2], held_out, probabilities.device)
        w = mass_weights(a[:, :, use], bounds) if bias else torch.ones_like(a[:, :, 0])
        made = refit(_normalised(a[:, :, use], w), own, target[:, :, use], ridge) if refit_values else own
        beta = w.log() if before is None else w.log() + before
        return [_Part(layers, beta, made, _errors(a[:, :, check], w, made, target[:, :, check]))]

    parts = [part for layers in _blocks(queries, keys) for part in in_halves(of, layers)]
    output_error, mass_error = torch.cat([part.errors for part in parts], dim=1).mean(dim=1).tolist()
    new_values = [m.to(values[n].dtype) for part in parts for n, m in zip(part.layers, part.values, strict=True)]
    betas = tuple(each for part in parts for each in part.beta)
    return Fit(betas if bias or biases is not None else None, tuple(new_values), output_error, mass_error)


@dataclass(frozen=True, eq=False)
class _Part:
    """The fit of some layers: `beta (layers, heads, kept)`, `values (…, kept, dim)`, `errors (2, layers·heads)`."""

    layers: Sequence[int]
    beta: Tensor
    values: Tensor
    errors: Tensor


def mass_weights(a: Tensor, bounds: tuple[float, float], *, pull: float = 1e-3, steps: int | None = None) -> Tensor:
    """Box-constrained least squares `min ‖A w − 1‖² + pull·s·‖w − 1‖²`, by accelerated projected gradient from ones.

    Args:
        a: `(…, rows, kept)` attention probabilities at the kept positions.
        pull: toward one, as a share of s, the largest diagonal entry of AᵀA.

    Returns:
        `(…, kept)`.
    """
    # λmax(AᵀA) ≤ ‖A‖₁·‖A‖∞: no eigenvalue to search for, and at most a few times too large on attention.
    top = (a.sum(dim=-2).amax(dim=-1) * a.sum(dim=-1).amax(dim=-1)).clamp_min(1e-12).unsqueeze(-1)
    mu = pull * a.square().sum(dim=-2).amax(dim=-1, keepdim=True)
    step = 1.0 / (top + mu)
    across = a.transpose(-1, -2).contiguous()  # rows in memory order for both products: half the time
    w = look = torch.ones_like(a[..., 0, :])
    momentum = 1.0
    for _ in range(steps or STEPS):
        residual = (look.unsqueeze(-2) @ across).squeeze(-2) - 1.0
        gradient = (residual.unsqueeze(-2) @ a).squeeze(-2) + mu * (look - 1.0)
        new = (look - step * gradient).clamp_(*bounds)
        following = (1.0 + (1.0 + 4.0 * momentum**2) ** 0.5) / 2.0
        look = new + ((momentum - 1.0) / following) * (new - w)
        w, momentum = new, following
    return w


def refit(x: Tensor, values: Tensor, target: Tensor, ridge: float) -> Tensor:
    """Values C with `X C ≈ Y` that stay close to what they were: `V + Xᵀ (X Xᵀ + λ I)⁻¹ (Y − X V)`.

    Args:
        x: `(…, rows, kept)` attention over the kept positions; `values (…, kept, dim)`, `target (…, rows, dim)`.
        ridge: λ as a share of the mean of the Gram matrix's diagonal.
    """
    gram = x @ x.transpose(-1, -2)
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    lam = (ridge * diagonal.mean(dim=-1, keepdim=True)).clamp_min(1e-10)
    gram.diagonal(dim1=-2, dim2=-1).add_(lam)
    factor = torch.linalg.cholesky(gram)
    return values + x.transpose(-1, -2) @ torch.cholesky_solve(target - x @ values, factor)


def _blocks(queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Iterator[list[int]]:
    """Layers of one shape, as many at once as their attention probabilities may take."""
    block: list[int] = []
    for layer, (q, k) in enumerate(zip(queries, keys, strict=True)):
        alike = not block or (q.shape == queries[block[0]].shape and k.shape == keys[block[0]].shape)
        each = 4 * q.shape[0] * q.shape[1] * k.shape[1]
        if block and (not alike or (len(block) + 1) * each > BLOCK_BYTES):
            yield block
            block = []
        block.append(layer)
    if block:
        yield block


def _logits(
    queries: Sequence[Tensor], keys: Sequence[Tensor], layers: Sequence[int], scale: float, biases: Tensor | None
) -> Tensor:
    """`(layers, kv_heads, group·n, T)` of the grouped queries and all keys, in float32.

    Args:
        biases: `(layers, kv_heads, T)`, added.
    """
    k = torch.stack([keys[layer] for layer in layers]).float()
    q = torch.stack([queries[layer] for layer in layers]).float()
    b, heads, n, d = q.shape
    grouped = q.reshape(b, k.shape[1], heads // k.shape[1] * n, d)
    logits = (grouped @ k.transpose(-1, -2)).mul_(scale)
    return logits if biases is None else logits.add_(biases.unsqueeze(2))


def _stacked(biases: Sequence[Tensor] | None, layers: Sequence[int]) -> Tensor | None:
    """`(layers, kv_heads, T)` in float32."""
    return None if biases is None else torch.stack([biases[layer] for layer in layers]).float()


def _probabilities(logits: Tensor) -> Tensor:
    """Attention of each row; a head that sees nothing attends to nothing."""
    return logits.softmax(dim=-1).nan_to_num_(0.0)


def _mass(logits: Tensor) -> Tensor:
    """The logarithm of each row's attention mass `(…, 1)`; 0 for a head that sees nothing."""
    mass = logits.logsumexp(dim=-1, keepdim=True)
    return mass.masked_fill_(mass == float("-inf"), 0.0)


def _index(kept: Tensor, layers: Sequence[int], logits: Tensor) -> Tensor:
    """`(layers, kv_heads, kept)` positions for this block."""
    if kept.ndim == 1:
        return kept.to(logits.device).expand(len(layers), logits.shape[1], -1)
    return kept[list(layers)].to(logits.device)


def _parts(n: int, rows: int, held_out: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to measure on; a query token is in one part with all heads of its group."""
    token = torch.arange(rows, device=device) % n
    out = (token % held_out == held_out - 1) if held_out and n >= 2 * held_out else torch.zeros_like(token) > 0
    every = torch.arange(rows, device=device)
    return every[~out], every[out] if bool(out.any()) else every


def _normalised(a: Tensor, w: Tensor) -> Tensor:
    weighted = a * w.unsqueeze(-2)
    return weighted / weighted.sum(dim=-1, keepdim=True).clamp_min(1e-20)


def _errors(a: Tensor, w: Tensor, values: Tensor, target: Tensor) -> Tensor:
    """Relative output error and mass error `(2, layers·kv_heads)`."""
    made = _normalised(a, w) @ values
    output = (made - target).norm(dim=(-2, -1)) / target.norm(dim=(-2, -1)).clamp_min(1e-12)
    mass = ((a * w.unsqueeze(-2)).sum(dim=-1) - 1.0).abs().mean(dim=-1)
    return torch.stack([output.flatten(), mass.flatten()])
