"""Channel `c2c`: Cache-to-Cache (arXiv 2510.03215), between any two models that a fuser was trained for.

Both models read the sender's conversation; the fuser adds what the sender's keys and values say to the receiver's own,
layer by layer, and the receiver goes on from there. It reads the whole text itself, so this costs more than `text`;
what it is for is the sender's understanding of it.
"""

from __future__ import annotations

from agentflow.channels.adapted import AdapterChannel


class C2CChannel(AdapterChannel):
    """The receiver's own keys and values of the conversation, fused with the sender's by a trained network."""

    name = "c2c"
    adapter = "c2c"
    rank = 40
