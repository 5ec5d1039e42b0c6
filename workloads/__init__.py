"""Jobs made of recorded data, with arrivals, tool times and filler text. Imports neither vLLM nor PyTorch."""
