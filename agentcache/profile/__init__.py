"""Measures prefills, decodes and the link to the host's memory on the machine at hand, and fits costs to them."""
