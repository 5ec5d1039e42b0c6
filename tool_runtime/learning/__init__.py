"""What the engine learns of agents: jobs and their gaps, how long tools take, how long a turn is worth keeping."""
