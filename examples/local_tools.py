"""The tools that the example agents have: they read text files of one folder, and nothing outside it."""

from __future__ import annotations

from pathlib import Path


class Folder:
    """What a method raises is for the model to see."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    def list_files(self) -> str:
        """List the names of the files in the folder."""
        return "\n".join(sorted(file.name for file in self._path.iterdir() if file.is_file()))

    def count_words(self, file: str) -> str:
        """Count the words of a text file in the folder.

        Args:
            file: The file's name.
        """
        path = (self._path / file).resolve()
        if not path.is_relative_to(self._path):
            raise ValueError(f"{file} is outside the folder")
        return str(len(path.read_text(encoding="utf-8").split()))
