"""Makes figures of the events of a run: summary, table, plots and page."""
