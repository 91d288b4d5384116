"""Shares of processes that train together, without any other process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsearch.training.loop import distributed
from dsearch.training.loop.distributed import Processes, asked_for, joined


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("texts", [0, 1, 2, 5, 6, 7, 11])
def test_shares_are_all_texts_once_in_order_and_no_larger_than_needed(count: int, texts: int) -> None:
    shares = [list(range(texts))[Processes(rank, count).share(texts)] for rank in range(count)]
    assert [text for share in shares for text in share] == list(range(texts))
    assert max(map(len, shares)) == -(-texts // count)


def test_the_first_process_writes_and_one_alone_asks_nobody() -> None:
    assert Processes().first
    assert not Processes(1, 2).first
    alone, mine = Processes(), torch.ones(2, 3)
    assert alone.gathered(mine, 2) is mine
    assert alone.agree(True) is True
    assert alone.agree(False) is False
    parameter = torch.nn.Parameter(torch.ones(1))
    alone.add_gradients([parameter])
    assert parameter.grad is None


def test_what_others_have_is_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last share is shorter: it is padded on its way, and the padding is left out."""
    whole = torch.arange(10.0).reshape(5, 2)

    def all_gather(parts: list[torch.Tensor], mine: torch.Tensor) -> None:
        assert mine.shape == (3, 2)
        assert mine[2].tolist() == [0, 0]
        parts[0].copy_(whole[:3])
        parts[1].copy_(mine)

    monkeypatch.setattr(distributed.distributed, "all_gather", all_gather)
    assert Processes(1, 2).gathered(whole[3:], 5).tolist() == whole.tolist()


def test_gradients_are_summed_and_an_empty_share_counts_as_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_reduce(flat: torch.Tensor) -> None:
        assert flat.tolist() == [1, 2, 0, 0, 0]
        flat += 10

    monkeypatch.setattr(distributed.distributed, "all_reduce", all_reduce)
    first, second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1, 3))
    first.grad = torch.tensor([1.0, 2.0])
    Processes(0, 2).add_gradients(iter([first, second]))
    assert first.grad.tolist() == [11, 12]
    assert second.grad is not None
    assert second.grad.tolist() == [[10, 10, 10]]


@pytest.mark.parametrize(("others", "stop"), [(0.0, False), (1.0, True), (3.0, True)])
def test_all_stop_if_one_wants_to(monkeypatch: pytest.MonkeyPatch, others: float, stop: bool) -> None:
    monkeypatch.setattr(distributed.distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(distributed.distributed, "all_reduce", lambda said: said.add_(others))
    assert Processes(0, 4).agree(False) is stop


@pytest.mark.parametrize(("size", "several"), [(None, False), ("1", False), ("2", True)])
def test_several_processes_are_told_by_torchrun(
    monkeypatch: pytest.MonkeyPatch, size: str | None, several: bool
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    assert asked_for() is several


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl"), ("cuda:1", "nccl")])
def test_a_group_is_left_whatever_happens(monkeypatch: pytest.MonkeyPatch, device: str, backend: str) -> None:
    steps: list[object] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "set_device", steps.append)
    monkeypatch.setattr(distributed.distributed, "init_process_group", steps.append)
    monkeypatch.setattr(distributed.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed.distributed, "destroy_process_group", lambda: steps.append("left"))
    group: Any = pytest.raises(ZeroDivisionError)
    with group, joined(device) as processes:
        assert processes == Processes(1, 2)
        raise ZeroDivisionError
    assert steps == ([1] if backend == "nccl" else []) + [backend, "left"]
