"""A superseded encoder may be dropped in any thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, since what is tested is that it lives on.
DROPPED_ELSEWHERE = """
import gc, signal, sys, threading
from pathlib import Path
import numpy as np
from dsearch.encoder.exported.runtimes import import_openvino, openvino_knows, openvino_session

openvino = import_openvino()
ids = openvino.opset13.parameter([-1, -1], np.int64, name="input_ids")
model = Path(sys.argv[1]) / "model.xml"
openvino.save_model(openvino.Model([openvino.opset13.convert(ids, "f32")], [ids], "floats"), str(model))
openvino_knows("BF16")
encoders = [openvino_session(model, "f32")]
print(encoders[0]({"input_ids": np.array([[3, 4]])}).embeddings.tolist(), flush=True)

def drop():
    encoders.clear()
    gc.collect()

thread = threading.Thread(target=drop)
thread.start()
thread.join()
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
signal.raise_signal(signal.SIGINT)
"""


def test_a_signal_is_handled_after_an_encoder_was_dropped_in_another_thread(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    done = subprocess.run(
        [sys.executable, "-c", DROPPED_ELSEWHERE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["[[3.0, 4.0]]", "interrupted"]), done.stderr
