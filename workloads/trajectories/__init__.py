"""Recorded conversations of agents with their tools and users, as text: tau-bench and WebDancer."""
