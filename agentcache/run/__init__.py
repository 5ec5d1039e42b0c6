"""Shared by replays and simulations: checks of options, the run's folder, progress, and the record of a job."""
