"""Tensors as arrays, operations by name, sizes: everything of the backend that needs no machine."""

import os
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch.distributed import ReduceOp

import superpod_torch
from collectives.dist import tensors as t
from collectives.dist.p2p import context_of
from collectives.dist.store import JobStore, meet, store_path
from collectives.dist.work import timeout_ps
from emulator.errors import DtypeError, SizeError, UsageError
from memsem.endpoint import CONTEXTS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int8, torch.float8_e5m2])
def test_an_array_is_the_tensors_memory(dtype):
    x = torch.tensor([0, 1, 0, 1]).to(dtype)
    array = t.array_of(x)
    assert array.nbytes == x.nbytes and array.ctypes.data == x.data_ptr()
    array[:] = 0
    assert not x.float().any()


def test_views_and_scalars():
    x = torch.arange(12.0).reshape(3, 4)
    assert np.array_equal(t.array_of(x.t()), x.t().numpy())
    assert t.array_of(torch.tensor(3.0)).tolist() == [3.0]
    assert t.array_of(torch.zeros(0)).size == 0
    needs = torch.nn.Parameter(x)
    assert t.array_of(needs).shape == (3, 4)


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.zeros(2, device="meta"), torch.zeros(1, dtype=torch.cfloat).conj()],
)
def test_what_has_no_memory_to_show_is_refused(tensor):
    with pytest.raises(UsageError, match="superpod: a"):
        t.array_of(tensor)


def test_a_result_lands_at_home():
    """Shown to fail with `settle` doing nothing."""
    whole = torch.zeros(4, 2)
    places = [whole[:, 0], whole[1:3, 1]]
    place = t.landing(places)
    place.array[:] = np.arange(1, 7)
    place.settle()
    assert whole.tolist() == [[1, 0], [2, 5], [3, 6], [4, 0]]
    alone = torch.zeros(3)
    t.landing([alone]).array[:] = 1
    assert alone.tolist() == [1, 1, 1]
    assert t.landing(places, load=True).array.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(DtypeError, match="one dtype in a list, not torch.float32, torch.int64"):
        t.landing([torch.zeros(1), torch.zeros(1, dtype=torch.int64)])


def test_rows_of_several_tensors():
    outputs = [torch.zeros(4), torch.zeros(2, dtype=torch.int64)]
    inputs = [torch.tensor([1.0, 2.0]), torch.tensor([3])]
    rows = t.Rows(2, 16, outputs, inputs)
    rows.array[:16] = t.raw(inputs)
    rows.array[16:] = t.raw([inputs[0] * 10, inputs[1] * 10])
    rows.settle()
    assert outputs[0].tolist() == [1, 2, 10, 20] and outputs[1].tolist() == [3, 30]


def test_operations_by_name():
    x = torch.ones(2)
    assert [t.reduction(op, [x]).op for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.BXOR)] == [
        "sum",
        "avg",
        "bxor",
    ]
    assert t.reduction(ReduceOp(ReduceOp.MAX), [x]).op == "max"
    scaled = t.reduction(torch._C._distributed_c10d._make_nccl_premul_sum(0.5), [x])
    assert scaled.op == "sum" and scaled.scaled(x).tolist() == [0.5, 0.5]
    flag = torch.tensor([True])
    assert t.reduction(ReduceOp.SUM, [flag]).op == "max" and t.reduction(ReduceOp.PRODUCT, [flag]).op == "min"
    with pytest.raises(DtypeError, match="avg of bool"):
        t.reduction(ReduceOp.AVG, [flag])
    with pytest.raises(DtypeError, match="float8"):
        t.reduction(ReduceOp.SUM, [x.to(torch.float8_e4m3fn)])


def test_counts_of_splits():
    x = torch.zeros(6, 5)
    assert t.counts_of(x, (), 3, "input") == [10, 10, 10]
    assert t.counts_of(x, [0, 4, 2], 3, "input") == [0, 20, 10]
    assert t.counts_of(torch.zeros(0, 5), [0, 0], 2, "input") == [0, 0]
    for splits, words in (
        ((), "6 rows of input among 4"),
        ([1, 2, 3], "3"),
        ([7, -1, 0, 0], "-1"),
        ([1, 1, 1, 1], "6"),
    ):
        with pytest.raises(SizeError, match=words):
            t.counts_of(x, splits, 4, "input")


def test_contexts_of_groups_are_their_own():
    """From 2**29 to 2**30, above communicators of messages and below groups of collectives."""
    names = [*map(str, range(1000)), "a3f5", "00ab", str(1 << 28)]
    idents = {(context_of(name) & ~CONTEXTS) >> 1 for name in names}
    assert len(idents) == len(names) and all(1 << 29 <= ident < 1 << 30 for ident in idents)


def test_timeouts():
    assert timeout_ps(timedelta(microseconds=3)) == 3_000_000
    assert timeout_ps(timedelta(0)) is timeout_ps(timedelta(milliseconds=-1)) is timeout_ps(None) is None


def test_place_and_store_of_a_job(tmp_path):
    assert superpod_torch.place_of({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}) == (3, 8)
    assert superpod_torch.place_of({"RANK": "3"}) is None
    assert store_path({"PMIX_SERVER_TMPDIR": str(tmp_path), "PMIX_NAMESPACE": "a@1"}).parent == tmp_path
    with pytest.raises(UsageError, match="world_size=4; .* as 8"):
        next(meet("env://?world_size=4", 3, 8))
    path = tmp_path / "store"
    store = JobStore(path, 1)
    assert not path.exists()  # nothing before its first use
    store.set_timeout(timedelta(seconds=5))
    prefixed = torch.distributed.PrefixStore("p", store)
    prefixed.set("k", b"\xff\0")
    assert prefixed.get("k") == b"\xff\0" and prefixed.add("c", 2) == 2 and path.exists()
    assert prefixed.check(["k"]) and not prefixed.check(["none"])


def test_the_backend_is_known_to_torch():
    superpod_torch.register()
    superpod_torch.register()
    assert torch.distributed.is_backend_available("superpod") and "MASTER_ADDR" not in os.environ
    assert torch.distributed.get_default_backend_for_device("cpu") == "gloo"
