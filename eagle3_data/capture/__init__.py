"""Capture: asking a served model, and storing what it said so that nothing is lost."""
