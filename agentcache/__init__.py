"""Serves LLM agents fast from your own GPUs, as a plug-in to stock vLLM."""

__version__ = "0.2.0"
