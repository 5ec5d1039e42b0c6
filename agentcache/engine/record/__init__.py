"""Records the engine's requests without their text, so that other policies can be tried on the same traffic."""
