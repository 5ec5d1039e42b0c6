"""The plug-in inside vLLM. The only package that imports vLLM's internals."""
