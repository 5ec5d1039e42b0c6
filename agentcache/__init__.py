"""agentcache: serve LLM agents fast from your own GPUs. A plug-in to stock vLLM."""

__version__ = "0.1.0"
