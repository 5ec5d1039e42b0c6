"""Recordings of one's own traffic, which `agentcache serve --record` writes: their lines, and jobs made of them."""
