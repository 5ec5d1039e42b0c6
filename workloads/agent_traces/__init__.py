"""Loads recorded sessions of coding agents, known by the hashes of their blocks."""
