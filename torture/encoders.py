"""Directories of sentence encoders made to harm whoever loads them.

HARMS and WILD are the known ways, with the message that refuses the former. They are written for an encoder
with the layout of all-MiniLM-L6-v2 and a head of 128 dimensions; `make_encoder` makes the smallest such one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rbegir.encode.sentence.encoder import SentenceEncoder
from rbegir.errors import RbegirError

WIDTH, N = 384, 128
HEAD_CONFIG = "3_RBEHead/config.json"
SETTINGS = "sentence_bert_config.json"  # of the transformer
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "shoes", "blue", "hats"]


def make_encoder(path: Path) -> Path:
    """One layer with random weights, which knows a few words."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from rbegir.encode.sentence.head import RBEHead

    base = path / "base"
    base.mkdir(parents=True)
    (base / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab_file=str(base / "vocab.txt")).save_pretrained(base)
    size = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1}
    BertModel(BertConfig(vocab_size=len(WORDS), num_attention_heads=2, **size)).save_pretrained(base)
    modules = [Transformer(str(base)), Pooling(WIDTH), Normalize(), RBEHead(WIDTH, n=N)]
    SentenceTransformer(modules=modules, device="cpu").save(str(path / "encoder"))
    return path / "encoder"


def put(path: Path, content: bytes | object) -> None:
    """A new file: the old one may be linked elsewhere."""
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def edited(path: Path, **changes: Any) -> None:
    put(path, {**json.loads(path.read_bytes()), **changes})


def sparse(path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(path: Path, target: str | Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(target)


HARMS: list[tuple[Callable[[Path], None], str]] = [
    (lambda at: sparse(at / "modules.json", 8 << 30), "has more than 134217728 bytes"),
    (lambda at: sparse(at / HEAD_CONFIG, 8 << 30), "has more than 134217728 bytes"),
    (lambda at: sparse(at / "tokenizer.json", 8 << 30), "has more than 134217728 bytes"),
    (lambda at: fifo(at / "config.json"), "is not a regular file"),
    (lambda at: fifo(at / "1_Pooling" / "config.json"), "is not a regular file"),
    (lambda at: link(at / "tokenizer.json", "/dev/zero"), "is not a regular file"),
    (lambda at: link(at / "vocab.txt", "/nowhere"), "is not a regular file"),
    (lambda at: link(at / "3_RBEHead", "/etc"), "is not a regular file"),
    (lambda at: edited(at / HEAD_CONFIG, in_features=20_000), "describes a layer of 2560000 numbers"),
    (lambda at: edited(at / HEAD_CONFIG, in_features=10**30), "describes a layer of 128" + "0" * 30),
    (lambda at: edited(at / HEAD_CONFIG, n=10**9), "describes a layer of 384000000000 numbers"),
    (lambda at: edited(at / "config.json", num_hidden_layers=10**5), "has num_hidden_layers = 100000"),
    (lambda at: edited(at / "config.json", vocab_size=10**9), "has vocab_size = 1000000000"),
    (lambda at: edited(at / "config.json", vocab_size=10**6), "describes layers of 394993792 numbers"),
    (lambda at: edited(at / "config.json", hidden_size=12 * 10**3), "describes layers of"),
    (lambda at: edited(at / "config.json", intermediate_size=10**6), "describes layers of"),
    (lambda at: edited(at / "config.json", max_position_embeddings=10**8), "max_position_embeddings = "),
    (lambda at: edited(at / "config.json", num_labels=10**7), "has num_labels = 10000000, expected at"),
    (lambda at: edited(at / "config.json", sub={"x": [10**18]}), "has x = 1000000000000000000"),
    (
        lambda at: edited(at / "config.json", transformers_weights="x.bin"),
        "names other files with its we",
    ),
    (lambda at: put(at / "adapter_config.json", {}), "names other files with its weights"),
    (lambda at: edited(at / SETTINGS, model_args={"gguf_file": "x"}), "sets 'model_args', which is not"),
    (lambda at: edited(at / SETTINGS, tokenizer_name_or_path="/x"), "sets 'tokenizer_name_or_path'"),
]
WILD: list[tuple[str, object]] = [
    ("modules.json", b"[" * 100_000),
    ("modules.json", [{"type": "sentence_transformers.models.Normalize"}]),
    ("modules.json", [{"type": 7, "path": ["x"]}]),
    ("modules.json", [{"type": "rbegir.heads.sentence.RBEHead", "path": "/etc"}]),
    ("config.json", b"[]"),
    ("config.json", b"null"),
    ("config.json", {"model_type": "nothing known"}),
    ("config.json", {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": -1}),
    ("1_Pooling/config.json", b"[]"),
    ("3_RBEHead/config.json", b"{"),
    ("3_RBEHead/config.json", {}),
    ("3_RBEHead/config.json", {"in_features": "many"}),
    ("3_RBEHead/config.json", {"in_features": 384, "n": 128, "surprise": 1}),
    ("3_RBEHead/config.json", {"in_features": 384, "n": 100}),
    ("3_RBEHead/config.json", {"in_features": 384, "n": 128, "query_planes": 10**6}),
    ("3_RBEHead/config.json", {"in_features": 384, "n": 128, "estimator": ["x"]}),
    ("3_RBEHead/model.safetensors", b"\xff" * 400_000),
    ("tokenizer.json", b"[]"),
    ("tokenizer.json", b"{}"),
    ("config_sentence_transformers.json", b"["),
    ("config_sentence_transformers.json", {"prompts": 7}),
    ("config_sentence_transformers.json", {"similarity_fn_name": "none known"}),
]


def hostile_encoder(sound: Path, victim: Path, chance: random.Random) -> None:
    """A copy of an encoder with one known harm, which must be refused, or with a few bytes more in a file, in
    which case it may also load; any error but ours is a finding."""
    shutil.copytree(sound, victim, copy_function=os.link)
    choice = chance.randrange(len(HARMS) + 2 * len(WILD))
    if choice < len(HARMS):
        HARMS[choice][0](victim)
    elif choice < len(HARMS) + len(WILD):
        file, content = WILD[choice - len(HARMS)]
        put(victim / file, content)
    else:
        files = sorted(path for path in victim.rglob("*") if path.suffix in (".json", ".safetensors"))
        path = chance.choice(files)
        raw = path.read_bytes()
        at = chance.randrange(len(raw))
        put(path, raw[:at] + chance.randbytes(chance.randrange(1, 9)) + raw[at:])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            SentenceEncoder.load(victim)
    except RbegirError:
        return
    assert choice >= len(HARMS) + len(WILD), f"hostile encoder {choice} was loaded"
