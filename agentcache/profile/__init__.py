"""Measures prefills and decodes on the engine at hand and fits the cost models to them."""
