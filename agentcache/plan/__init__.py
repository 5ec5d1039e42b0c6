"""`agentcache plan`: what other policies and caches would have made of recorded traffic, simulated in parallel."""
