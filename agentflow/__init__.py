"""AgentFlow: agents that hand each other KV caches instead of strings."""

__version__ = "0.1.0"
