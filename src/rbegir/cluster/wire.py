"""Messages as lists of plain values, which Ray passes on without looking into them.

Left to itself Ray takes objects apart and looks at every array in them, for each shard again:
0.3 ms a call of a few small arrays, more than the scan of a small shard. Numbers, texts, bytes and lists go
through its fast path, so that is what a message becomes, once for all shards:

    an array         ["array", dtype, shape, bytes]
    one of objects   ["objects", shape, its values]
    a message        ["message", name of its class, its fields]
    a tuple, a dict  ["tuple", values], ["dict", keys, values]

What is none of these (filters of pyarrow, errors) is left to Ray.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from rbegir.cluster import messages
from rbegir.search.request import SearchRequest

KINDS: dict[str, type[Any]] = {
    "SearchRequest": SearchRequest,
    **{name: kind for name, kind in vars(messages).items() if is_dataclass(kind) and isinstance(kind, type)},
}


def pack(value: Any) -> Any:
    """A message in plain values."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ["objects", list(value.shape), [pack(one) for one in value.ravel()]]
        return ["array", value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is tuple:
        return ["tuple", [pack(one) for one in value]]
    if type(value) is list:
        return ["list", [pack(one) for one in value]]
    if type(value) is dict:
        return ["dict", [pack(key) for key in value], [pack(one) for one in value.values()]]
    if type(value).__name__ in KINDS:
        return ["message", type(value).__name__, [pack(getattr(value, f.name)) for f in fields(value)]]
    return value


def unpack(plain: Any) -> Any:
    """The message again. Arrays are read-only."""
    if type(plain) is not list:
        return plain
    match plain:
        case ["array", dtype, shape, data]:
            return np.ndarray(shape, dtype, data)
        case ["objects", shape, values]:
            array = np.empty(len(values), object)
            for i, one in enumerate(values):
                array[i] = unpack(one)
            return array.reshape(shape)
        case ["tuple", values]:
            return tuple(unpack(one) for one in values)
        case ["list", values]:
            return [unpack(one) for one in values]
        case ["dict", keys, values]:
            return {unpack(key): unpack(value) for key, value in zip(keys, values, strict=True)}
        case ["message", name, values]:
            return KINDS[name](*(unpack(one) for one in values))
    raise TypeError(f"not a packed message: {plain!r}")
