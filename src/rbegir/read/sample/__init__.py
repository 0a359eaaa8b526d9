"""The shipped sample: real aliases and titles to train, evaluate and search. See README.md in this folder.

The files are inside the package, so that they are found in a checkout and in an installed wheel alike.
"""

from pathlib import Path

from rbegir.errors import FileError, InputError

SAMPLES = {"train": "train.tsv.gz", "valid": "valid.tsv.gz", "titles": "titles.txt.gz"}


def sample_path(name: str) -> Path:
    """The path of a part of the sample: `train` and `valid` (pairs) or `titles` (texts to search)."""
    if name not in SAMPLES:
        raise InputError(f"there is no sample {name!r}", hint=f"choose one of {', '.join(SAMPLES)}")
    path = Path(__file__).parent / SAMPLES[name]
    if not path.is_file():
        raise FileError(f"the shipped sample {path} is missing", hint="install rbegir again")
    return path
