"""Which cache block goes next. Pure decisions: no vLLM, no torch, no clock of its own."""
