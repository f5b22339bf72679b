"""Tools: typed Python functions that a workflow may call by name. Knows neither workflows nor tensors."""

from agentflow.tools.base import Misuse, Tool, ToolError
from agentflow.tools.toolbox import Toolbox

__all__ = ["Misuse", "Tool", "ToolError", "Toolbox"]
