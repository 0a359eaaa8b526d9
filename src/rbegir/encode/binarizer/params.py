"""scikit-learn's conventions without scikit-learn.

An estimator's constructor stores its arguments and nothing else; `get_params` gives them back as they were,
`clone` makes an unfitted copy from them. Encoding is used where scikit-learn is not installed, so nothing
is inherited from it; `__sklearn_tags__`, which only scikit-learn asks for, imports it.
"""

from __future__ import annotations

import inspect
from typing import Any, Self

from rbegir.errors import InputError


class Params:
    """get_params, set_params and repr over the arguments of the constructor."""

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments; `deep` is there for scikit-learn, no argument is an estimator."""
        return {name: self.__dict__[name] for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; they count from the next `fit` on."""
        for name, value in params.items():
            if name not in self._names():
                raise InputError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}",
                    hint=f"valid parameters are {', '.join(self._names())}",
                )
            self.__dict__[name] = value
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        given = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value != defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(),
        )
