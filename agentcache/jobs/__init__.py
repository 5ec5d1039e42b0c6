"""Makes recorded jobs ready to run: from a workload and a tokenizer to prompts, replies and tool times."""
