"""Models that the project makes itself, for machines where no weights are at hand."""
