"""The GPU backend in Triton's interpreter: equal to the reference, on one device and on several."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from triton.runtime.errors import OutOfResources, PTXASError

from rbegir.base import masks
from rbegir.errors import DeviceError, InputError
from rbegir.search.backend import Candidates, coarse
from rbegir.search.gpu import backend as gpu
from rbegir.search.gpu import card, proof, tensorcore
from rbegir.search.gpu.backend import GpuBackend
from rbegir.search.gpu.device import Range, Residency, find_devices, slab_bytes
from rbegir.search.gpu.tensorcore import CompileError
from rbegir.search.gpu.words import INTERPRETED, SlabSearch
from rbegir.search.partition import merge
from rbegir.search.reference import ReferenceBackend
from tests.search.gpu.cases import assert_equal_to_reference, make_case

DEVICE = "cpu" if INTERPRETED else "cuda:0"


@pytest.mark.parametrize("method", ["popcount", "product"])
@pytest.mark.parametrize(
    ("n", "planes", "top", "odd", "queries", "k", "counts"),
    [
        (64, 2, 7, True, 1, 10, (1, 63, 130)),
        (64, 2, 127, False, 1, 500, (64, 65)),
        (128, 1, 1, True, 1, 1, (200,)),
        (64, 3, 255, True, 1, 20, (65,)),
        (128, 4, 30, False, 1, 7, (70, 0, 3)),
    ],
)
def test_equals_the_reference(
    method: str, n: int, planes: int, top: int, odd: bool, queries: int, k: int, counts: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(n + planes + top)
    case = make_case(rng, n, planes, top=top, odd=odd, queries=queries, k=k, counts=counts)
    backend = GpuBackend(n, planes, DEVICE)
    backend._workers[0].card.force = method
    assert_equal_to_reference(backend, case)


@pytest.mark.whole
@pytest.mark.parametrize(("n", "planes"), [(64, 3), (64, 4), (192, 2)])
def test_hard_worlds(n: int, planes: int) -> None:
    """Keywords, queries, orders and k that are made to be hard; a few under the interpreter."""
    from torture.worlds import Still

    rng = np.random.default_rng([n, planes])
    world = Still(
        rng, n=n, planes=planes, count=65 if INTERPRETED else 5000, work=1000 if INTERPRETED else 10**6
    )
    backend = GpuBackend(n, planes, DEVICE)
    wrong = [asked for _, _, same, asked in world.results({DEVICE: backend}, asks=1) if not same]
    assert not wrong


def test_limits_of_queries() -> None:
    """A least key, a hit behind which to continue and filters, none of which the kernels know."""
    from torture.worlds import Still

    world = Still(np.random.default_rng(1), n=64, planes=2, count=130, work=700)
    asks = 3 if INTERPRETED else 100
    answers = list(world.results({DEVICE: GpuBackend(64, 2, DEVICE)}, asks=asks))
    assert [asked for _, _, same, asked in answers if not same] == []
    limited = "".join(asked for *_, asked in answers if "limited" in asked)
    assert all(kind in limited for kind in ("a hit before", "a least key", "filters"))


@pytest.mark.parametrize("density", [0.0, 0.05, 0.7])
def test_masks(density: float) -> None:
    rng = np.random.default_rng(5)
    case = make_case(rng, 64, 2, counts=(100, 333), density=density, k=30)
    assert_equal_to_reference(GpuBackend(64, 2, [DEVICE, DEVICE]), case)


def test_spread_over_devices_and_kept_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SPLIT", 100)
    rng = np.random.default_rng(6)
    case = make_case(rng, 64, 2, counts=(500, 64, 7), k=40)
    uploads: list[tuple[int, int]] = []
    backend = GpuBackend(64, 2, [DEVICE] * 3, progress=lambda done, total: uploads.append((done, total)))
    assert_equal_to_reference(backend, case)
    assert uploads[-1] == (571, 571)
    assert all(total == 571 and 0 < done <= total for done, total in uploads)
    assert all(worker.resident.used for worker in backend._workers)
    uploads.clear()
    more = make_case(rng, 64, 2, counts=(90,), k=40)
    assert_equal_to_reference(backend, case._replace(parts=[*case.parts, *more.parts]))
    assert uploads == [(90, 90)]  # nothing else was uploaded again


def test_what_does_not_fit_is_streamed() -> None:
    rng = np.random.default_rng(7)
    case = make_case(rng, 64, 2, counts=(700, 300, 129), density=0.8, k=25)
    assert_equal_to_reference(GpuBackend(64, 2, DEVICE, memory=slab_bytes(700, 64, 2)), case)
    backend = GpuBackend(64, 2, DEVICE, memory=1000)
    message = r"^1,129 keywords of 16 bytes do not fit into the memory of .*, not even 64 at a time"
    with pytest.raises(DeviceError, match=message) as raised:
        backend.search(case.parts, case.values, 5)
    assert raised.value.hint.startswith("use more devices")


def test_old_partitions_leave_for_new_ones() -> None:
    rng = np.random.default_rng(8)
    backend = GpuBackend(64, 2, DEVICE, memory=slab_bytes(1000, 64, 2))
    for _ in range(2):
        assert_equal_to_reference(backend, make_case(rng, 64, 2, counts=(200,), k=3))
    assert len(backend._workers[0].resident._slabs) == 1


def test_chunked_upload_equals_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(np.random.default_rng(9), 64, 2, counts=(400,))
    part = case.parts[0]
    resident = Residency(64, 2, torch.device(DEVICE))
    whole = resident.upload(Range(part.packed, 400, 64, 400))
    monkeypatch.setattr("rbegir.search.gpu.device.CHUNK", 2 * 1024)  # two groups of 64 a chunk
    seen: list[tuple[int, int]] = []
    chunked = resident.upload(
        Range(part.packed, 400, 64, 400), lambda done, total: seen.append((done, total))
    )
    assert torch.equal(whole.words, chunked.words)
    assert seen == [(128, 336), (256, 336), (336, 336)]


def test_ties_beyond_all_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """More keywords on the k-th score than survivors fit: the lowest positions win."""
    monkeypatch.setattr(proof, "power_of_two", lambda x: 64)
    case = make_case(np.random.default_rng(10), 64, 2, counts=(150, 70), copies=2, k=30)
    assert_equal_to_reference(GpuBackend(64, 2, DEVICE), case)


def test_a_threshold_that_is_too_high_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def too_high(self: card.Card, pieces: object, batch: card.Batch, k: int, boost: float = 1.0) -> object:
        tries.append(boost)
        limits = torch.tensor([[1 << 40 if boost < 64 else -(1 << 44), 1, 0]], device=batch.device)
        return limits.repeat(batch.queries, 1), float(k)

    monkeypatch.setattr(card.Card, "first_limits", too_high)
    assert_equal_to_reference(GpuBackend(64, 2, DEVICE), make_case(np.random.default_rng(11), 64, 2))
    assert tries == [1.0, 8.0, 64.0]


def test_sample_and_refined_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that is smaller than the slab, and a first threshold from a part of the sample."""
    monkeypatch.setattr("rbegir.search.gpu.words.LEAST_SAMPLE", 200)
    monkeypatch.setattr(card, "DENSE", 60)
    case = make_case(np.random.default_rng(12), 64, 2, counts=(900,), queries=2, density=0.9, k=5)
    assert_equal_to_reference(GpuBackend(64, 2, DEVICE), case)


def test_thresholds_of_a_batch_pass_little_more_than_k(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with slabs that are sampled unevenly, and never far too much: a query whose sample held too few
    candidates for the second threshold once let everything pass."""
    monkeypatch.setattr("rbegir.search.gpu.words.LEAST_SAMPLE", 256)
    monkeypatch.setattr("rbegir.search.gpu.words.SHARE", 8)
    monkeypatch.setattr("rbegir.search.gpu.words.MANY", 2)
    monkeypatch.setattr(card, "DENSE", 64)
    monkeypatch.setattr(card, "BLOCK", 1024)  # the interpreter's time is per block in so large a slab
    k, counts = 40, (256, 200, 3000 if INTERPRETED else 6000)
    queries = 4 if INTERPRETED else 12
    case = make_case(np.random.default_rng(18), 64, 2, counts=counts, queries=queries)
    device = torch.device(DEVICE)
    resident, own = Residency(64, 2, device), card.Card(64, 2, device)
    bases = np.cumsum([0, *counts])
    pieces = [
        SlabSearch(
            resident.upload(Range(part.packed, part.count, 0, part.count)), int(base), None, part.count
        )
        for part, base in zip(case.parts, bases, strict=False)
    ]
    pending = proof.begin(own, pieces, card.Batch(case.values, device), k)
    passed = pending.found.counts[:queries].cpu().numpy()
    assert (passed >= k).all()
    assert passed.max() < 20 * k
    wanted = ReferenceBackend(64, 2).search(case.parts, case.values, k)
    np.testing.assert_array_equal(pending.result()[1], wanted.positions)


@pytest.mark.parametrize("method", ["popcount", "product"])
def test_counts_beyond_31_bits_store_nothing(method: str) -> None:
    case = make_case(np.random.default_rng(19), 64, 2, counts=(70,))
    device = torch.device(DEVICE)
    own, batch = card.Card(64, 2, device), card.Batch(case.values, device)
    own.force = method
    slab = Residency(64, 2, device).upload(Range(case.parts[0].packed, 70, 0, 70))
    found = own.survivors(batch, 128)
    found.positions.fill_(-1)
    found.counts.fill_(2**31 - 3)
    limits = torch.tensor([[-(1 << 44), 1, 0]], device=device)
    own.scan(SlabSearch(slab, 0, None, 70), batch, limits, found)
    assert int(found.counts[0]) == 2**31 - 3 + 70
    assert bool((found.positions == -1).all())


def test_paper_and_progressive() -> None:
    case = make_case(np.random.default_rng(13), 64, 2, counts=(200, 150), queries=2, k=20)
    backend, reference = GpuBackend(64, 2, DEVICE), ReferenceBackend(64, 2)
    found, certificate = backend.search_paper(case.parts, case.values, 20, per_thread=2, queue=2)
    wanted, expected = reference.search_paper(case.parts, case.values, 20, per_thread=2, queue=2)
    np.testing.assert_array_equal(found.positions, wanted.positions)
    assert certificate == expected
    progressive = backend.search_progressive(case.parts, case.values, 20)
    np.testing.assert_array_equal(
        progressive.candidates.positions, reference.search(case.parts, case.values, 20).positions
    )
    assert progressive.recall == 1.0
    with pytest.raises(InputError, match="candidates must be a whole number of at least 20, got 3"):
        backend.search_progressive(case.parts, case.values, 20, candidates=3)


@pytest.mark.parametrize(("queue", "k"), [(1, 100), (2, 30), (1, 500)])
def test_paper_with_masks(queue: int, k: int) -> None:
    """Hits and certificate to the last digit; masks leave threads of all sizes, met in any order."""
    queries, counts = (1, (150, 0, 65, 330)) if INTERPRETED else (2, (300, 0, 65, 724))
    case = make_case(np.random.default_rng(17), 64, 2, counts=counts, queries=queries, density=0.5, copies=40)
    arguments = (case.parts, case.values, k // 2 if INTERPRETED else k)
    found, certificate = GpuBackend(64, 2, DEVICE).search_paper(*arguments, per_thread=4, queue=queue)
    wanted, expected = ReferenceBackend(64, 2).search_paper(*arguments, per_thread=4, queue=queue)
    np.testing.assert_array_equal(found.keys, wanted.keys)
    np.testing.assert_array_equal(found.positions, wanted.positions)
    assert certificate == expected


def test_nothing_to_search() -> None:
    backend = GpuBackend(64, 2, DEVICE)
    assert backend.search([], np.ones((2, 64), np.int16), 5).keys.shape == (2, 0)
    case = make_case(np.random.default_rng(15), 64, 2)
    assert backend.search(case.parts, np.zeros((0, 64), np.int16), 5).keys.shape == (0, 5)


def test_a_lost_device_is_a_clear_error_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(np.random.default_rng(16), 64, 2)
    backend = GpuBackend(64, 2, DEVICE)

    def lost(*arguments: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure\nmore")

    with monkeypatch.context() as patch:
        patch.setattr(card.Card, "scan", lost)
        with pytest.raises(
            DeviceError, match=r"failed during a search: CUDA error: unspecified launch failure \(hint"
        ):
            backend.search(case.parts, case.values, 5)
    assert backend._workers[0].resident.used == 0
    assert_equal_to_reference(backend, case)
    with monkeypatch.context() as patch:
        patch.setattr(card.Card, "scan", lambda *a: (_ for _ in ()).throw(torch.OutOfMemoryError("x")))
        with pytest.raises(DeviceError, match="ran out of memory during a search"):
            backend.search(case.parts, case.values, 5)


@pytest.mark.parametrize(
    "error", [PTXASError("ptxas fatal: sm_35"), OutOfResources(300, 200, "shared memory")]
)
def test_a_card_that_triton_cannot_compile_for(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(np.random.default_rng(16), 64, 2)
    backend = GpuBackend(64, 2, DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(card.Card, "scan", lambda *a: (_ for _ in ()).throw(error))
        with pytest.raises(
            DeviceError, match=r"cannot run the search kernels: .*(sm_35|shared memory)"
        ) as raised:
            backend.search(case.parts, case.values, 5)
    assert raised.value.hint.startswith("use device='cpu'")


def test_without_nvrtc_there_are_no_tensor_core_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CompileError("libnvrtc.so.13 was not found")

    monkeypatch.setattr(tensorcore, "_nvrtc", missing)
    assert not tensorcore.available()
    assert tensorcore.kinds_of(torch.device("cuda")) == ()


def test_a_kernel_that_does_not_compile_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(np.random.default_rng(17), 64, 2, queries=4, counts=(70,))
    backend = GpuBackend(64, 2, DEVICE)
    own = backend._workers[0].card
    own.kinds = ("float8", "mma")
    asked = []

    def refuse(self: card.Card, kind: str, *rest: object) -> None:
        asked.append(kind)
        raise CompileError("the kernel does not compile for sm_80: error")

    monkeypatch.setattr(card.Card, "_scan_tensorcore", refuse)
    assert_equal_to_reference(backend, case)
    assert asked[0] == "mma"  # the cheapest for four queries
    assert "mma" not in own.kinds


@pytest.mark.parametrize(
    ("error", "message", "names"),
    [
        (InputError, "device must be a name such as 'cpu' or a list of such names, got []", []),
        (InputError, "device must be a name such as 'cpu' or a list of such names, got [3]", [3]),
        (InputError, "device must be 'cpu', 'cuda' or 'cuda:N', got 'tpu'", "tpu"),
        (InputError, "device must be 'cpu', 'cuda' or 'cuda:N', got 'cuda:x'", "cuda:x"),
        (DeviceError, "device 'cuda:99' was asked for, but", ["cuda:99"]),
    ],
)
def test_wrong_devices(error: type[Exception], message: str, names: object) -> None:
    with pytest.raises(error) as raised:
        find_devices(names)
    assert str(raised.value).startswith(message)


def test_rescore_and_other_planes() -> None:
    """What a caller of any backend may use: the best of given positions, and a scan of the first planes."""
    case = make_case(np.random.default_rng(21), 64, 2, counts=(130, 70), density=0.5)
    backend, reference = GpuBackend(64, 2, DEVICE), ReferenceBackend(64, 2)
    shuffled = np.random.default_rng(22).permuted(np.tile(np.arange(200), (len(case.values), 1)), axis=1)
    positions = shuffled[:, :40]
    found = backend.rescore(case.parts, case.values, positions, 9)
    unmasked = [part._replace(mask=None) for part in case.parts]
    every, _ = reference.scores(unmasked, case.values)  # [queries, 200]
    for query, row in enumerate(positions):
        best = sorted(row.tolist(), key=lambda position: (-every[query, position], position))[:9]
        assert found.positions[query].tolist() == best
        assert found.keys[query].tolist() == every[query, best].tolist()
    first = coarse(case.parts, 64, 1)
    for got, wanted in zip(
        backend.with_planes(1).search(first, case.values, 7),
        reference.with_planes(1).search(first, case.values, 7),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)


def test_merge_is_the_total_order() -> None:
    first = Candidates(np.array([[9, 5, 5]]), np.array([[4, 0, 7]]))
    second = Candidates(np.array([[9, 5]]), np.array([[1, 3]]))
    keys, positions = merge([first, second], 4)
    assert keys.tolist() == [[9, 9, 5, 5]]
    assert positions.tolist() == [[1, 4, 0, 3]]


def test_frozen_masks_travel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that can be written to is sent with every search: it may have changed."""
    case = make_case(np.random.default_rng(20), 64, 2, counts=(130, 70), density=0.5)
    sent: list[int] = []
    real = Residency._send
    monkeypatch.setattr(Residency, "_send", lambda self, mask: (sent.append(len(mask)), real(self, mask))[1])
    backend = GpuBackend(64, 2, DEVICE)
    masks.freeze(case.parts[0].mask)
    for turn in range(2):
        case.parts[1].mask[0] ^= np.uint64(1 << turn)
        assert_equal_to_reference(backend, case)
    assert sent == [3, 2, 2]
    view = case.parts[1].mask[:]
    view.flags.writeable = False
    assert not masks.is_frozen(view)  # its owner can be written to
