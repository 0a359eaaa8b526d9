"""Float vectors of any encoder → binary codes: `Binarizer`."""

from rbegir.encode.binarizer.estimator import Binarizer

__all__ = ["Binarizer"]
