"""One workflow over two channels from Python: the answers, and what the receivers had to compute for them."""

from __future__ import annotations

import sys

import agentflow

FACTS = ["The locker code of Dora is 2161.", "The locker code of Fred is 7582."]
QUESTIONS = ["What is the locker code of Fred?"]


def main() -> None:
    """Run `private_facts` over text and over cache; the model is loaded once."""
    flow = agentflow.load_workflow("private_facts")
    options = agentflow.RunOptions(reuse=False)  # so that the second channel can't profit from the first
    for channel in ("text", "cache"):
        result = flow.run({"facts": FACTS, "questions": QUESTIONS}, channel=channel, options=options)
        (answer,) = result.nodes["answer"]
        sys.stdout.write(f"{channel}: {answer.text} (prefilled {answer.prefilled}, reused {answer.reused})\n")


if __name__ == "__main__":
    main()
