"""From the events of a run to its figures: summary, table, plots, Markdown and HTML."""
