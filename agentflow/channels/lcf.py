"""Channel `lcf`: Latent Cache Flow (arXiv 2605.22863), between any two models that an adapter was trained for.

Five variants, which differ in what they keep of the sender's cache and where the receiver finds it. `aligned` needs the
text at both ends, as `c2c` does; the others send no words at all, and the two contexts may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from agentflow.adapters.wire import CodeBits, pack, unpack
from agentflow.channels.adapted import AdapterChannel, AdapterSettings
from agentflow.channels.placing import Packed

Variant = Literal["mapped", "slots", "aligned", "pooled", "delta"]


class LCFSettings(AdapterSettings):
    """Settings of `lcf`."""

    variant: Variant = Field(
        default="mapped",
        description="mapped: every position of the sender's, as the receiver's; slots: a fixed number of positions; "
        "delta: a change of the receiver's values; pooled: one vector a layer; aligned: a narrow c2c",
    )
    bits: CodeBits | None = Field(
        default=None,
        description="of a number on the wire; left out: 4 for delta, else as the receiver's model has them",
    )


class LCFChannel(AdapterChannel):
    """What a trained adapter keeps of the sender's cache."""

    name = "lcf"
    Settings = LCFSettings
    settings: LCFSettings
    compresses = True
    rank = 30

    @property
    def adapter(self) -> str:  # type: ignore[override]
        """The registered name of the variant's class."""
        return f"lcf_{self.settings.variant}"

    def packed(self, codes: Mapping[str, Tensor]) -> Packed:
        """The codes in few bits."""
        bits = self.settings.bits or (4 if self.settings.variant == "delta" else None)
        if bits is None:
            return Packed(dict(codes))
        widths = {name: t.shape[-1] for name, t in codes.items()}
        loss = f"codes in {bits} bits"
        return Packed(pack(codes, bits), {"bits": bits, "widths": widths}, (loss,))

    def unpacked(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
        """The codes as numbers."""
        bits = settings.get("bits")
        if bits is None:
            return dict(tensors)
        if bits not in (4, 8, 16):
            raise ValueError(f"its numbers have {bits} bits")
        widths = {str(name): int(width) for name, width in settings["widths"].items()}
        return unpack(tensors, widths, bits)
