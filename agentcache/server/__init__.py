"""vLLM's own OpenAI server with our scheduler wired in: as a command, or embedded in this process."""
