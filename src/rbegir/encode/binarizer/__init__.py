"""Float vectors of any encoder → binary codes: `Binarizer`."""

from rbegir.encode.binarizer.binarizer import Binarizer

__all__ = ["Binarizer"]
