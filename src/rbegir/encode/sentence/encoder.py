"""Any sentence-transformers model as an encoder of an index: texts in, codes out.

    encoder = SentenceEncoder.load("sentence-transformers/all-MiniLM-L6-v2").fit(texts)
    index = rbegir.Index.create("titles.rbe", encoder)

A model that ends in an `RBEHead` makes codes itself. Any other makes vectors, and a Binarizer, fitted on
some of the texts to be stored, turns those into codes.

*Words.* Vectors find what a text means, and may miss a name, a number or a rare word in it. After
`learn_words(texts)`, searches by text take the best keywords by words as candidates, too, and order all
candidates by meaning and words together (`rbegir.encode.reranker`).

An index does not keep the encoder, which may be gigabytes, but where it is, its fingerprint, which covers all
weights, the Binarizer and the weights of words (`rbegir.encode.encoder`). If the encoder is gone or has
changed, encoding a text fails with an error that says so; the index can still be searched by codes.

*Nothing is fetched.* A name is looked up in the local Hugging Face cache and nowhere else. A model's own code
is never run: the classes of its modules are those listed here, weights are safetensors, never pickle, and a
model that needs anything else is refused. Its files are regular files inside its directory (or blobs of the
cache), its texts have a maximum size, and its layers at most twice as many numbers as its weights have bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from rbegir.base.arguments import check_texts
from rbegir.base.disk import read_small, refuse_link
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.binarizer import MIN_ROWS, Binarizer
from rbegir.encode.encoder import BINARIZER, NEEDED, read_reference, write_reference
from rbegir.encode.reranker import Reranker
from rbegir.encode.reranker import read as read_reranker
from rbegir.errors import FileError, InputError, MismatchError, needing

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from rbegir.encode.sentence.head import RBEHead

HEAD = "rbegir.heads.sentence.RBEHead"  # as saved models name the class
TRANSFORMER = "base.modules.transformer.Transformer"
_CLASSES = (
    TRANSFORMER, "base.modules.dense.Dense", "base.modules.normalize.Normalize",
    "sentence_transformer.modules.dropout.Dropout", "sentence_transformer.modules.pooling.Pooling",
    "sentence_transformer.modules.static_embedding.StaticEmbedding",
)  # fmt: skip
# the classes that a model may be made of, by their names in release 6 of sentence-transformers and before
MODULES = {
    HEAD,
    *(f"sentence_transformers.{name}" for name in _CLASSES),
    *(f"sentence_transformers.models.{name.rpartition('.')[2]}" for name in _CLASSES),
}
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
SAFE, SHARDS = "model.safetensors", "model.safetensors.index.json"
# what the config of a Transformer may set: not which files are read, nor how
SETTINGS = {
    "document_length", "do_lower_case", "max_seq_length", "modality_config", "module_output_name",
    "processing_kwargs", "query_expansion", "query_length", "transformer_task", "unpad_inputs",
}  # fmt: skip
COUNTS = re.compile(r"(layers|n_layer|blocks?|depths?|experts)$")  # how many parts there are, with weights
MAX_LABELS = 1 << 16
OUTSIDE = "load it with SentenceTransformer yourself and pass SentenceEncoder(model)"
MAX_TEXT_FILE = 1 << 27  # bytes of a config or a vocabulary
FIT_TEXTS = 10_000  # that a Binarizer is fitted on at most, roughly
BLOCK = 2048  # texts between two reports of progress
ENCODING = 0.9  # of the time of a fit, roughly; learning takes the rest


class SentenceEncoder:
    """Codes by a SentenceTransformer and, without RBE head, a Binarizer. Threads may share it."""

    encode_rows = BLOCK

    def __init__(
        self,
        model: SentenceTransformer,
        binarizer: Binarizer | None = None,
        *,
        reference: str | None = None,
        batch_size: int = 64,
    ) -> None:
        """`reference`: the path or name under which `load` finds the model again; None cannot be stored."""
        self.model, self.binarizer, self.reference, self.batch_size = model, binarizer, reference, batch_size
        self.reranker: Reranker | None = None
        self.head = _head_of(model)
        if self.head is not None and binarizer is not None:
            raise InputError("the model ends in an RBE head, so it takes no binarizer", hint="leave it out")
        self._weights: str | None = None
        self._lock = threading.Lock()

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str], *, device: str = "cpu", batch_size: int = 64) -> Self:
        """The model in a directory, or of a name in the local Hugging Face cache. Nothing is downloaded."""
        path, reference = _locate(os.fspath(name_or_path))
        return cls(_open(path, device), reference=reference, batch_size=batch_size)

    def fit(
        self,
        texts: Sequence[str],
        *,
        n: int | None = None,
        query_planes: int = 8,
        keyword_planes: int = 2,
        bytes: int | None = None,
        notify: Callable[[float], None] = lambda done: None,
    ) -> Self:
        """Fit the Binarizer to (some of) these texts; a model with an RBE head needs no fitting.

        With `bytes` it chooses `keyword_planes`, and `n` if that is None. `notify` is called with the share
        of the work that is done.
        """
        if self.head is not None:
            raise InputError(
                "the model ends in an RBE head, which is trained, not fitted", hint="use it as it is"
            )
        if len(texts) < MIN_ROWS:
            raise InputError(f"fitting needs at least {MIN_ROWS} texts, got {len(texts)}")
        some = list(texts[:: max(1, len(texts) // FIT_TEXTS)])
        parts = []
        for start in range(0, len(some), BLOCK):
            parts.append(self.vectors(some[start : start + BLOCK], "document"))
            notify(ENCODING * min(start + BLOCK, len(some)) / len(some))
        vectors = np.concatenate(parts)
        binarizer = Binarizer(vectors.shape[1], n, query_planes, keyword_planes, bytes=bytes)
        self.binarizer = binarizer.fit(vectors, notify=lambda done: notify(ENCODING + (1 - ENCODING) * done))
        return self

    def learn_words(self, texts: Any) -> Self:
        """Let searches by text go by words, too. Words weigh more the rarer they are in these texts."""
        given = check_texts(texts)
        self.reranker = Reranker.by_words(given.slice(i, BLOCK) for i in range(0, len(given), BLOCK))
        return self

    @property
    def n(self) -> int:
        return (self.head or self._fitted()).n

    @property
    def query_planes(self) -> int:
        return (self.head or self._fitted()).query_planes

    @property
    def keyword_planes(self) -> int:
        return (self.head or self._fitted()).keyword_planes

    @property
    def fingerprint(self) -> str:
        """Names the model's weights and the Binarizer; an index remembers it."""
        if self._weights is None:
            self._weights = _digest(self.model)
        own = "" if self.head is not None else self._fitted().fingerprint
        return hashlib.sha256(f"{self._weights} {own}".encode()).hexdigest()[:32]

    def encode_queries(self, texts: Sequence[str]) -> Codes:
        """The codes of queries."""
        vectors = self.vectors(texts, "query")
        return _codes(vectors, self.query_planes) if self.head else self._fitted().encode_queries(vectors)

    def encode_keywords(self, texts: Sequence[str]) -> Codes:
        """The codes of keywords."""
        vectors = self.vectors(texts, "document")
        if self.head:
            return _codes(vectors, self.keyword_planes)
        return Codes(self._fitted().encode_keywords(vectors).planes, self.n, self.fingerprint)

    def vectors(self, texts: Sequence[str], task: str) -> npt.NDArray[np.float32]:
        """The SentenceTransformer's vectors of texts: float32 [count, dims]; `task` is query or document."""
        if not len(texts):
            dims = self.head.n if self.head else self._fitted().n_features_in_
            return np.zeros((0, dims), np.float32)
        encode = self.model.encode_query if task == "query" else self.model.encode_document
        with self._lock:  # tokenizers are not made for several threads at once
            out: npt.NDArray[np.float32] = encode(
                list(texts), batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True
            )
        return out

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Store where the model is, the Binarizer and the weights of words, for an index."""
        if self.reference is None:
            raise MismatchError(
                "this encoder was made from a model in memory, so an index cannot say where it is",
                hint="save the model and load it with SentenceEncoder.load(path)",
            )
        if self.binarizer is not None:
            self.binarizer.save(Path(directory) / BINARIZER)
        if self.reranker is not None:
            self.reranker.write(directory, self.fingerprint)
        write_reference(Path(directory), self.reference, self.fingerprint)

    def _fitted(self) -> Binarizer:
        if self.binarizer is None:
            raise InputError(
                "this encoder makes vectors and has no codes yet",
                hint="call fit(texts), or train the model with an RBEHead at its end",
            )
        return self.binarizer


def load_reference(directory: Path) -> SentenceEncoder:
    """The encoder that an index refers to."""
    body = read_reference(directory)
    reference = str(body["reference"])
    try:
        encoder = SentenceEncoder.load(reference)
    except FileError as error:
        raise FileError(
            f"the encoder of this index, {reference}, is gone: {error.message}",
            hint="put it back, or a link to where it is now",
        ) from error
    if (directory / BINARIZER).is_dir():
        encoder.binarizer = Binarizer.load(refuse_link(directory / BINARIZER))
    if encoder.fingerprint != body["fingerprint"]:
        raise MismatchError(
            f"{reference} is not the encoder that this index was built with: its weights differ",
            hint="put the old one back, or build the index again",
        )
    encoder.reranker = read_reranker(directory, encoder.fingerprint, None)
    return encoder


def _locate(name: str) -> tuple[Path, str]:
    """The directory of a model and how to write it down: an absolute path, or the name."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path, str(path.absolute())
    with needing(*NEEDED):
        import sentence_transformers  # noqa: F401 - names are looked up for its models only
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True)), name
    except (LocalEntryNotFoundError, HFValidationError, OSError) as error:
        raise FileError(
            f"there is no encoder {name!r}: it is no directory and not in the local Hugging Face cache",
            hint="nothing is downloaded: fetch it first, or pass the path of a saved SentenceTransformer",
        ) from error


def _open(path: Path, device: str) -> SentenceTransformer:
    with needing(*NEEDED):
        from sentence_transformers import SentenceTransformer
    _check_files(path)
    modules = _modules(path)
    foreign = [entry["type"] for entry in modules if entry["type"] not in MODULES]
    if foreign:
        raise InputError(
            f"the encoder {path} is made of {foreign[0]}, code of its own, which is not run here",
            hint=OUTSIDE,
        )
    kinds = [(entry["type"], path / entry["path"]) for entry in modules] or [(TRANSFORMER, path)]
    try:
        for kind, folder in kinds:
            transforms = kind.endswith(".Transformer")
            _check_weights(folder, shards=transforms)
            if transforms:
                _check_transformer(folder)
        if HEAD in [entry["type"] for entry in modules]:
            return _assemble(path, modules, device)
        return SentenceTransformer(str(path), device=device, local_files_only=True)
    except FileError:
        raise
    except Exception as error:  # anything that several libraries may raise about a broken model
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(
            f"{path} cannot be opened as a SentenceTransformer: {reason}",
            hint="pass the directory of a saved one",
        ) from error


def _check_files(path: Path) -> None:
    """Refuse a directory with special files, links out of it, huge texts, or a head larger than its weights.

    The libraries that load a model read such files whole and allocate such layers before they see weights.
    The Hugging Face cache keeps the files of `snapshots/<revision>` as links to `blobs`.
    """
    root = path.resolve()
    homes = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
    for file in path.rglob("*"):
        target = file.resolve()
        if target.is_dir() and not file.is_symlink():
            continue
        if not target.is_file():
            raise FileError(f"{file} is not a regular file", hint="pass the directory of a saved encoder")
        if not any(target.is_relative_to(home) for home in homes):
            raise FileError(f"{file} is a link out of its directory", hint="copy the file there")
        if file.suffix in (".json", ".txt") and target.stat().st_size > MAX_TEXT_FILE:
            raise FileError(f"{file} has more than {MAX_TEXT_FILE} bytes", hint="check the path")
        if file.name == "config.json":
            body = _json(file)
            sizes = [body.get(name) for name in ("in_features", "out_features", "n")]
            layer = math.prod(size for size in sizes if isinstance(size, int))
            weights = sum(one.stat().st_size for one in file.parent.iterdir())
            if "in_features" in body and layer > weights:
                raise FileError(
                    f"{file} describes a layer of {layer} numbers, its weights are in {weights} bytes",
                    hint="copy the encoder again",
                )


def _check_weights(folder: Path, *, shards: bool) -> None:
    """Refuse the weights of a module if a library might unpickle them; `shards` may make up for one file."""
    safe = (folder / SAFE).is_file()
    strange: list[Any] = []
    if shards and (folder / SHARDS).is_file():
        safe, named = True, _json(folder / SHARDS).get("weight_map")
        names = named.values() if isinstance(named, dict) else [named]
        strange = [name for name in names if not re.fullmatch(r"[\w.-]+\.safetensors", str(name))]
    if not safe:
        strange = [file.name for file in folder.glob("*") if file.suffix in PICKLED]
    if strange:
        raise FileError(
            f"{folder} has its weights in {strange[0]}, which is not a safetensors file",
            hint="load it with SentenceTransformer and save it again: that writes safetensors",
        )


def _check_transformer(folder: Path) -> None:
    """Refuse a transformer that sets what is read, or whose layers are larger than its weights."""
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModel

    for file in folder.glob("sentence_*_config.json"):
        if other := sorted(name for name, value in _json(file).items() if value and name not in SETTINGS):
            raise FileError(f"{file} sets {other[0]!r}, which is not supported here", hint=OUTSIDE)
    config = _json(folder / "config.json")
    if (folder / "adapter_config.json").exists() or "transformers_weights" in config:
        raise FileError(f"{folder} names other files with its weights", hint=OUTSIDE)
    weights = list(folder.glob("*.safetensors"))
    size, tensors = sum(file.stat().st_size for file in weights), 0
    for file in weights:
        with safe_open(file, "numpy") as opened:
            tensors += len(opened.keys())
    for name, number in _numbers(config):
        most = MAX_LABELS if "labels" in name else tensors if COUNTS.search(name) else size
        if number > most:
            raise FileError(
                f"{folder / 'config.json'} has {name} = {number}, expected at most {most} with its weights",
                hint="copy the encoder again",
            )
    with torch.device("meta"):  # which allocates nothing
        made: Any = AutoModel.from_config(  # type: ignore[no-untyped-call]
            AutoConfig.from_pretrained(str(folder), local_files_only=True)
        )
    needed = sum(tensor.numel() for tensor in (*made.parameters(), *made.buffers()))
    if needed > 2 * size:  # some weights may be missing, such as a decoder that is not used
        raise FileError(
            f"{folder / 'config.json'} describes layers of {needed} numbers, its weights are in {size} bytes",
            hint="copy the encoder again",
        )


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """The whole numbers in a JSON value, with the keys that they have."""
    if isinstance(value, int):
        yield name, value
    elif isinstance(value, list):
        for one in value:
            yield from _numbers(one, name)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _numbers(one, key)


def _json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model; a cache of models keeps files behind links."""
    try:
        body = json.loads(read_small(path.resolve(), MAX_TEXT_FILE))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}", hint="copy the encoder again") from error
    return body if isinstance(body, dict) else {}


def _modules(path: Path) -> list[dict[str, str]]:
    """The modules that a saved model lists, each with its `type` and `path`; none for a bare transformer."""
    listing = path / "modules.json"
    if not listing.is_file():
        if not (path / "config.json").is_file():
            raise FileError(
                f"{path} holds no encoder: neither modules.json nor config.json is there",
                hint="pass the directory of a saved SentenceTransformer",
            )
        return []
    try:
        entries = json.loads(read_small(listing.resolve(), MAX_TEXT_FILE))
        modules = [{"type": str(entry["type"]), "path": str(entry["path"])} for entry in entries]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{listing} does not list the modules of a SentenceTransformer") from error
    for module in modules:
        if Path(module["path"]).is_absolute() or ".." in Path(module["path"]).parts:
            raise FileError(f"{listing} names the path {module['path']!r}, which leaves the directory")
    return modules


def _assemble(path: Path, listed: list[dict[str, str]], device: str) -> SentenceTransformer:
    """Load a model with our head module by module: SentenceTransformer would ask to trust all of its code."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import import_from_string

    from rbegir.encode.sentence.head import RBEHead

    modules = []
    for entry in listed:
        kind: Any = RBEHead if entry["type"] == HEAD else import_from_string(entry["type"])
        modules.append(kind.load(str(path), subfolder=entry["path"], local_files_only=True))
    settings: dict[str, Any] = {}
    if (path / "config_sentence_transformers.json").is_file():
        settings = _json(path / "config_sentence_transformers.json")
    known = ("prompts", "default_prompt_name", "similarity_fn_name")
    given = {key: settings[key] for key in known if settings.get(key)}
    return SentenceTransformer(modules=modules, device=device, **given)


def _head_of(model: SentenceTransformer) -> RBEHead | None:
    from rbegir.encode.sentence.head import RBEHead

    *_, last = model.children()
    return last if isinstance(last, RBEHead) else None


def _codes(vectors: npt.NDArray[np.float32], planes: int) -> Codes:
    """The codes behind a head's outputs Σ (½)^t · plane t, which are odd integers over 2^(planes − 1)."""
    return Codes.from_values(np.rint(vectors * 2.0 ** (planes - 1)).astype(np.int16), planes)


def _digest(model: SentenceTransformer) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value.detach().float().cpu().numpy()).tobytes())
    return digest.hexdigest()
