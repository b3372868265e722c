"""Serves live traffic through an OpenAI-compatible API, stamps and records every answer."""
