"""Conversations about long documents, of LooGLE and LongBench."""
