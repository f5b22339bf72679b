"""Deriving a smaller model from another one: layers left out, and what is left healed by distillation."""
