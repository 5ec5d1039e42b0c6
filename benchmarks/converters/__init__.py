"""Converts traces of others to recordings, a module each: a reader that refuses bad files by file, line and field."""
