"""How fast a judge is asked, beside vLLM's own benchmark client."""
