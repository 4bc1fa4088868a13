"""Values that options may take, spelt out so that parsing and help need no import of ours; equal to api's enums."""

from typing import Literal

DataFormatChoice = Literal["CriteoTSV", "CriteoBinary", "CriteoMultiHot", "Parquet", "CSV", "NPZ", "MovieLens100K"]
"""Formats of files."""
