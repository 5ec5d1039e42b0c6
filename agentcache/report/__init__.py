"""Makes figures of the events of a run: summary, table, plots, Markdown and HTML."""
