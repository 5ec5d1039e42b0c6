"""BFCL's web-search questions, as made jobs or from a result file of the benchmark."""
