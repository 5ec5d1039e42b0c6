"""Evictors that are only compared with: serving another policy loads none of them."""
