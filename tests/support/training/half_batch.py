"""One of two processes that train a layer together: `half_batch.py HOME MEETING RANK OUT QUERY...`.

Writes the gradient of the head's keys, averaged with the other process's.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dsearch.threads import set_threads

set_threads(1)

import torch
import torch.distributed as distributed
from support.service.service_fakes import WordEncoder
from torch import nn

import dsearch
from dsearch.engine import SearchEngine


def main(home: str, meeting: str, rank: str, out: str, *queries: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    with SearchEngine(Path(home), encoder=WordEncoder, readonly=True) as reading:
        layer = dsearch.open_layer(reading, "papers", mode="dense")
        parallel = nn.parallel.DistributedDataParallel(layer, find_unused_parameters=True)
        states = torch.as_tensor(WordEncoder().encode_queries(list(queries)))
        parallel(states).context.square().sum(1).mean().backward()
        torch.save(layer.head.key_delta.grad, out)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
