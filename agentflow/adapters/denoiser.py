"""A small denoising decoder: one shot, two residual blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Denoiser(nn.Module):
    """`(..., size)` codes, noisy ones while training, to clean ones.

    It is told how much noise there is, so that at inference, without any, it can say so itself.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(size + 1, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(2)
        )
        self.out = nn.Linear(width, size)

    def forward(self, codes: Tensor, noise: float = 0.0) -> Tensor:
        """Decode; `noise` is the largest standard deviation that is added first, in those of the codes."""
        level = codes.new_zeros(codes.shape[:-1])
        if noise:
            level = torch.rand_like(level) * noise
            scale = codes.detach().std(dim=-1, keepdim=True, unbiased=False)
            codes = codes + torch.randn_like(codes) * scale * level.unsqueeze(-1)
        hidden = self.into(torch.cat([codes, level.unsqueeze(-1)], dim=-1))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        out: Tensor = codes + self.out(hidden)
        return out
