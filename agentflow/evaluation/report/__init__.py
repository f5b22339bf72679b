"""Reports of a comparison: terminal, Markdown, JSON, and one self-contained HTML file."""
