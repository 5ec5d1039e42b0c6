"""Holds what replays and simulations share: checks of options, the run's folder, progress, the record of a job."""
