"""A model on disk is whole or refused: flipped bytes, forged configs, crashes at every step."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from rbegir._native import _core
from rbegir.base import mapping
from rbegir.encode import directory
from rbegir.encode.clsm.checkpoint import CONFIG, WEIGHTS, Checkpoint, read, write
from rbegir.encode.clsm.presets import PRESETS, ModelConfig, random_tensors, tensor_shapes
from rbegir.encode.directory import NEW, REPAIR, header, seal
from rbegir.errors import CorruptError, FileError, FullError, InputError, VersionError

TINY = ModelConfig(conv=1, hash_buckets=1)
EXTRA = {"training": {"epochs": 3, "rate": 0.001}, "note": "größe"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write(tmp_path / "model", TINY, random_tensors(TINY), EXTRA)
    return tmp_path / "model"


def refused_link(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


def forge(path: Path, change: dict[str, Any], *, remove: str | None = None) -> None:
    """Change config.json and make its checksums fit again, as an attacker would."""
    body = json.loads((path / CONFIG).read_text())
    del body["crc32c"]
    body |= change
    if isinstance(body.get("model"), dict) and "fingerprint" not in change:
        body["fingerprint"] = directory.fingerprint(body["model"], body["weights"]["tensors"])
    if remove:
        del body[remove]
    (path / CONFIG).write_bytes(seal(body))


def rewrite_weights(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Other tensors under a header and a config whose checksums all fit."""
    sums = {name: _core.crc32c(array) for name, array in tensors.items()}
    model = json.loads((path / CONFIG).read_text())["model"]
    fingerprint = directory.fingerprint(model, sums)
    head = header(tensors, {"fingerprint": fingerprint})
    content = head + b"".join(array.tobytes() for array in tensors.values())
    (path / WEIGHTS).write_bytes(content)
    weights = {
        "bytes": len(content),
        "crc32c": _core.crc32c(content),
        "header_crc32c": _core.crc32c(head),
        "tensors": sums,
    }
    forge(path, {"weights": weights, "fingerprint": fingerprint})


@pytest.mark.parametrize("name", [*PRESETS, "shared", "bare"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    config = replace(PRESETS.get(name, TINY), conv=2, hash_buckets=3)
    if name == "shared":
        config = replace(config, share_towers=True, hidden=(3, 4), time_varying=False, query_planes=5)
    if name == "bare":
        config = replace(config, bias=False)
    tensors = random_tensors(config)
    fingerprint = write(tmp_path / "deep" / "down", config, tensors, EXTRA)
    got_config, got, extra = read(str(tmp_path / "deep" / "down"))
    assert got_config == config
    assert extra == EXTRA
    assert {name: array.shape for name, array in got.items()} == tensor_shapes(config)
    packaged = load_file(tmp_path / "deep" / "down" / WEIGHTS)
    for key, array in tensors.items():
        assert np.array_equal(got[key], array)
        assert np.array_equal(packaged[key], array)
    assert Checkpoint(tmp_path / "deep" / "down").fingerprint == fingerprint
    assert len(fingerprint) == 32
    assert sorted(os.listdir(tmp_path / "deep" / "down")) == [CONFIG, WEIGHTS]


def test_fingerprints_tell_models_apart(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    same = {write(tmp_path / str(i), TINY, tensors, {"run": i}) for i in range(2)}
    other_config = write(tmp_path / "c", replace(TINY, estimator="stochastic"), tensors)
    changed = {**tensors, "query.rbe.W.bias": tensors["query.rbe.W.bias"] + 1}
    other_weights = write(tmp_path / "w", TINY, changed)
    assert len(same) == 1
    assert len({*same, other_config, other_weights}) == 3


def test_the_tensors_of_the_paper() -> None:
    shapes = tensor_shapes(PRESETS["rbe_star"])
    assert shapes["query.conv.weight"] == (50_653 + 8192, 864)
    assert shapes["query.rbe.B.1.weight"] == (288, 64)
    assert shapes["keyword.rbe.R.0.weight"] == (64, 288)
    assert "keyword.rbe.B.1.weight" not in shapes
    assert tensor_shapes(PRESETS["m_5"])["query.out.weight"] == (64, 288)


def test_every_flipped_byte_is_found(saved: Path) -> None:
    """Every byte of the config and of the weights' header, and bytes of every tensor."""
    size = (saved / WEIGHTS).stat().st_size
    start = Checkpoint(saved).file.data_start
    spans = Checkpoint(saved).file.spans.values()
    inside = {place for span in spans for place in (span.start, (span.start + span.stop) // 2, span.stop - 1)}
    places = {CONFIG: range((saved / CONFIG).stat().st_size), WEIGHTS: [*range(start), *inside, size - 1]}
    for name, positions in places.items():
        with (saved / name).open("r+b") as file:
            for position in positions:
                file.seek(position)
                (old,) = file.read(1)
                for new in (old ^ 0xFF, old ^ (1 << position % 8), 0x20 if old != 0x20 else 0x0A):
                    if new == old:
                        continue
                    file.seek(position)
                    file.write(bytes([new]))
                    file.flush()
                    with pytest.raises(FileError) as caught:
                        read(saved)
                    assert caught.type in (CorruptError, VersionError, FileError)
                file.seek(position)
                file.write(bytes([old]))
                file.flush()
    read(saved)


def test_a_flipped_byte_is_found_at_first_use_of_its_tensor_only(saved: Path) -> None:
    span = Checkpoint(saved).file.spans["keyword.conv.weight"]
    with (saved / WEIGHTS).open("r+b") as file:
        file.seek(span.start + 5)
        file.write(b"\x77")
    opened = Checkpoint(saved)
    opened.tensor("query.conv.weight")
    message = f"{saved / WEIGHTS} does not match its checksum in tensor 'keyword.conv.weight'"
    for use in (lambda: opened.tensor("keyword.conv.weight"), opened.verify, lambda: read(saved)):
        with pytest.raises(CorruptError) as caught:
            use()
        assert caught.value.message == message
        assert caught.value.hint == REPAIR


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 900, -1])
def test_a_truncated_file_is_refused(saved: Path, keep: int) -> None:
    content = (saved / WEIGHTS).read_bytes()
    (saved / WEIGHTS).write_bytes(content[:keep])
    with pytest.raises(CorruptError, match=WEIGHTS):
        Checkpoint(saved)
    (saved / WEIGHTS).write_bytes(content + b"\0")
    with pytest.raises(CorruptError, match=r"bytes, but has"):
        Checkpoint(saved)
    (saved / WEIGHTS).write_bytes(content)
    text = (saved / CONFIG).read_bytes()
    (saved / CONFIG).write_bytes(text[:keep])
    with pytest.raises(CorruptError, match=r"config.json is not what was written"):
        Checkpoint(saved)


USES: dict[str, Callable[[Checkpoint], object]] = {
    "tensor": lambda opened: opened.tensor("keyword.conv.weight"),
    "verify": Checkpoint.verify,
    "save": lambda opened: opened.save(opened.path.parent / "copy"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("kept", [0, 4096, -1])
def test_a_file_that_is_truncated_while_it_is_open_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Checkpoint], object], kept: int
) -> None:
    monkeypatch.setattr(os, "link", refused_link)
    opened = Checkpoint(saved)
    opened.verify()
    os.truncate(saved / WEIGHTS, kept if kept >= 0 else opened.file.size - 1)
    with pytest.raises(CorruptError, match=r"was truncated while it was being read, or the disk cannot"):
        use(opened)
    assert [path for path in saved.parent.rglob("*") if path.is_file()] == [saved / CONFIG, saved / WEIGHTS]


def test_a_file_that_is_truncated_while_it_is_opened_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    map_ = mapping.Mapping

    def late(file: int, size: int, **options: Any) -> mapping.Mapping:
        os.truncate(saved / WEIGHTS, 100)
        return map_(file, size, **options)

    monkeypatch.setattr(mapping, "Mapping", late)
    with pytest.raises(CorruptError, match=r"was truncated while it was being opened"):
        Checkpoint(saved)


def test_what_is_missing_is_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"^no model at .*nowhere") as caught:
        read(tmp_path / "nowhere")
    assert caught.value.hint == "pass the directory that training wrote"
    os.rename(saved / WEIGHTS, tmp_path / "w")
    with pytest.raises(FileError, match=r"holds no model: model.safetensors is missing"):
        read(saved)
    os.rename(tmp_path / "w", saved / WEIGHTS)
    (saved / CONFIG).unlink()
    with pytest.raises(FileError, match=r"holds no model: config.json is missing"):
        read(saved)


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "other"}', "3"])
def test_foreign_json_is_refused(saved: Path, text: str) -> None:
    (saved / CONFIG).write_text(text)
    with pytest.raises(FileError, match=r"config.json is not the config of an rbegir model"):
        read(saved)


@pytest.mark.parametrize("version", [0, 3, "1", None])
def test_another_version_is_refused(saved: Path, version: object) -> None:
    forge(saved, {"version": version})
    with pytest.raises(VersionError, match=r"is of format version .*, this rbegir reads version 2") as caught:
        read(saved)
    assert caught.value.hint == "upgrade rbegir, or train the model again"


MODEL = TINY.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {**MODEL, "n": 65}}, "n must be a multiple of 64"),
        ({"model": {**MODEL, "n": "64"}}, "sets n to '64'"),
        ({"model": {**MODEL, "bias": 1}}, "sets bias to 1"),
        ({"model": {**MODEL, "hidden": ["8"]}}, r"sets hidden to \['8'\]"),
        ({"model": {**MODEL, "hidden": [True]}}, r"sets hidden to \[True\]"),
        ({"model": {**MODEL, "estimator": "guess"}}, "estimator must be one of"),
        ({"model": {**MODEL, "more": 1}}, "does not hold the settings of a model"),
        ({"model": 7}, "is not what was written"),
        ({"weights": 7}, "is not what was written"),
        ({"weights": {"tensors": {}}}, "is not what was written"),
        ({"fingerprint": "0" * 32}, "is not what was written"),
    ],
)
def test_a_forged_config_is_refused(saved: Path, change: dict[str, Any], message: str) -> None:
    body = json.loads((saved / CONFIG).read_text())
    if isinstance(change.get("model"), dict):  # make the weights claim the forged fingerprint as well
        fingerprint = directory.fingerprint(change["model"], body["weights"]["tensors"])
        content = (saved / WEIGHTS).read_bytes()
        (saved / WEIGHTS).write_bytes(content.replace(body["fingerprint"].encode(), fingerprint.encode()))
        forge(saved, change)
    else:
        body.pop("crc32c")
        (saved / CONFIG).write_bytes(seal({**body, **change}))
    with pytest.raises(CorruptError, match=message):
        read(saved)


@pytest.mark.parametrize("text", ['{"format": "rbegir-model", "version": 1}', "[" * 100_000, "\xff", "NaN"])
def test_a_config_that_makes_no_sense_is_refused(saved: Path, text: str) -> None:
    (saved / CONFIG).write_text(text, encoding="latin-1")
    with pytest.raises(FileError, match=r"config.json is not"):
        read(saved)


def test_tensors_that_do_not_fit_the_config_are_refused(saved: Path) -> None:
    tensors = dict(sorted(random_tensors(TINY).items()))
    bias = tensors.pop("query.rbe.W.bias")
    rewrite_weights(saved, tensors)
    with pytest.raises(CorruptError, match=r"lacks tensor 'query.rbe.W.bias'"):
        read(saved)
    rewrite_weights(saved, {**tensors, "query.rbe.W.bias": bias[:32]})
    with pytest.raises(CorruptError, match=r"'query.rbe.W.bias' as \[32\], its config asks for \[64\]"):
        read(saved)
    rewrite_weights(saved, {**tensors, "query.rbe.W.bias": bias, "more": bias})
    with pytest.raises(CorruptError, match=r"holds tensor 'more', which is not in its config"):
        read(saved)
    rewrite_weights(saved, {**tensors, "query.rbe.W.bias": bias})
    read(saved)


def test_files_of_two_models_are_told_apart(saved: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", TINY, random_tensors(TINY, seed=9))
    shutil.copy(tmp_path / "other" / WEIGHTS, saved / WEIGHTS)
    with pytest.raises(CorruptError, match=r"config.json and model.safetensors in .* do not belong together"):
        read(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query.rbe.W.bias": None}, "tensors lack query.rbe.W.bias"),
        ({"more": np.zeros(1, np.float32)}, "tensors must not hold more"),
        (
            {"query.rbe.W.bias": np.zeros(64)},
            r"'query.rbe.W.bias' must be float32 \[64\], got float64 \[64\]",
        ),
        ({"query.rbe.W.bias": np.zeros(63, np.float32)}, r"must be float32 \[64\], got float32 \[63\]"),
        ({"query.rbe.W.bias": [0.0] * 64}, r"must be float32 \[64\], got list"),
        ({"query.rbe.W.bias": np.full(64, np.nan, np.float32)}, "holds NaN or infinity"),
    ],
)
def test_wrong_tensors_are_not_written(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    tensors = {name: array for name, array in {**random_tensors(TINY), **change}.items() if array is not None}
    with pytest.raises(InputError, match=message):
        write(tmp_path / "model", TINY, tensors)
    assert not (tmp_path / "model").exists()


def test_wrong_additions_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^extra must not use the names model, version"):
        write(tmp_path / "m", TINY, random_tensors(TINY), {"version": 3, "model": 1})
    for value in (float("nan"), {1, 2}):
        with pytest.raises(InputError, match=r"^extra must be plain JSON"):
            write(tmp_path / "m", TINY, random_tensors(TINY), {"value": value})
    assert not (tmp_path / "m").exists()


class Killed(BaseException):
    """Stands for the process ending at this very point."""


STEPS = ("open", "fsync", "replace", "link")


def run_killed(monkeypatch: pytest.MonkeyPatch, step: int, action: Any) -> bool:
    """Run, ending before the given system call; whether it was reached."""
    left = step

    def counted(call: Any) -> Any:
        def wrapper(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return call(*args, **options)

        return wrapper

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(Path, "open", counted(Path.open))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        try:
            action()
        except Killed:
            return True
    return False


def test_killed_at_any_step_the_old_or_the_new_model_is_there(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Checkpoint(saved).fingerprint
    tensors = random_tensors(TINY, seed=5)
    new = write(tmp_path / "elsewhere", TINY, tensors)
    seen, step = [], 0
    while True:
        work = tmp_path / f"step{step}"
        shutil.copytree(saved, work)
        killed = run_killed(monkeypatch, step, lambda work=work: write(work, TINY, tensors))
        read(work)
        seen.append(Checkpoint(work).fingerprint)
        # and whatever was left behind, the next write succeeds, killed or not
        third = random_tensors(TINY, seed=6)
        inner = 0
        while run_killed(monkeypatch, inner, lambda work=work, third=third: write(work, TINY, third)):
            read(work)
            inner += 3
        assert Checkpoint(work).fingerprint not in (old, new)
        assert sorted(os.listdir(work)) == [CONFIG, WEIGHTS]
        shutil.rmtree(work)
        if not killed:
            break
        step += 1
    assert seen == sorted(seen, key=[old, new].index)
    assert seen.count(new) >= 2  # also between the two renames
    assert seen.count(old) >= 4


@pytest.mark.parametrize("part", [b"", b'{"format": "rbegir-mod'])
def test_a_part_of_a_new_config_does_not_hide_the_old_model(saved: Path, part: bytes) -> None:
    """A process killed while it wrote the file, or one that is still writing it."""
    old = Checkpoint(saved).fingerprint
    (saved / (CONFIG + ".new")).write_bytes(part)
    assert Checkpoint(saved).fingerprint == old
    (saved / (WEIGHTS + ".new")).write_bytes(b"")  # it is written before the config
    new = write(saved, TINY, random_tensors(TINY, seed=5))
    assert Checkpoint(saved).fingerprint == new
    assert sorted(os.listdir(saved)) == [CONFIG, WEIGHTS]


def test_a_failed_write_leaves_the_old_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Checkpoint(saved).fingerprint

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FullError, match=r"^cannot write a model to .*model: no space left on device"):
            write(saved, TINY, random_tensors(TINY, seed=5))
    assert Checkpoint(saved).fingerprint == old
    assert sorted(os.listdir(saved)) == [CONFIG, WEIGHTS]


def test_writing_onto_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(FileError, match=r"^cannot write a model to .*file: file exists"):
        write(tmp_path / "file", TINY, random_tensors(TINY))


def test_save_links_the_file_that_is_open(saved: Path, tmp_path: Path) -> None:
    opened = Checkpoint(saved)
    opened.save(tmp_path / "copy")
    assert (tmp_path / "copy" / WEIGHTS).samefile(saved / WEIGHTS)
    assert read(tmp_path / "copy")[2] == EXTRA
    write(saved, TINY, random_tensors(TINY, seed=5))  # another model takes the place of the one that is open
    opened.save(tmp_path / "late")
    assert Checkpoint(tmp_path / "late").fingerprint == opened.fingerprint
    assert Checkpoint(tmp_path / "copy").fingerprint == opened.fingerprint
    opened.save(tmp_path / "late")  # replacing itself
    read(tmp_path / "late")


def test_save_copies_where_links_are_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refused_link)
    Checkpoint(saved).save(tmp_path / "copy")
    assert not (tmp_path / "copy" / WEIGHTS).samefile(saved / WEIGHTS)
    read(tmp_path / "copy")


def test_a_reader_between_the_two_renames_finds_the_new_model(saved: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new", TINY, random_tensors(TINY, seed=5))
    os.replace(tmp_path / "new" / WEIGHTS, saved / WEIGHTS)
    os.replace(tmp_path / "new" / CONFIG, saved / (CONFIG + NEW))
    assert Checkpoint(saved).fingerprint == new
