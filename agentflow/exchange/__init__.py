"""Payloads between programs: through folders, through pipes, over HTTP. What travels is the file of `kv.wire`."""
