"""The packed file, written by hand: each number of it arrives in the model, and a damaged one is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from dsearch.encoder.packed import PackedFile, PackedModel, read_packed
from dsearch.errors import CorruptData

HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS, TYPES = 32, 1, 2, 64, 5, 1
PIECES = [
    ("<s>", 0.0),
    ("<pad>", 0.0),
    ("</s>", 0.0),
    ("<unk>", 0.0),
    ("▁a", -1.0),
    ("▁b", -2.0),
    ("c", -3.0),
]
SIZES = (HIDDEN, LAYERS, HEADS, INTERMEDIATE, len(PIECES), POSITIONS, TYPES)
EPS = 0.25


def tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {
        "emb.word": (len(PIECES), HIDDEN),
        "emb.pos": (POSITIONS, HIDDEN),
        "emb.type": (TYPES, HIDDEN),
        "emb.ln.w": (HIDDEN,),
        "emb.ln.b": (HIDDEN,),
    }
    wide = {"fi": (INTERMEDIATE, HIDDEN), "fo": (HIDDEN, INTERMEDIATE)}
    for part in ("q", "k", "v", "ao", "fi", "fo"):
        shape = wide.get(part, (HIDDEN, HIDDEN))
        shapes |= {f"l0.{part}.w": shape, f"l0.{part}.b": shape[:1]}
    for part in ("aln", "oln"):
        shapes |= {f"l0.{part}.w": (HIDDEN,), f"l0.{part}.b": (HIDDEN,)}
    return {name: draw.standard_normal(shape).astype("<f4") for name, shape in shapes.items()}


def written(own: dict[str, np.ndarray], *, version: int = 1, block: int = 32, numbers: int = 0) -> bytes:
    """The file with these tensors; `numbers` are added to the count that it gives of each."""
    texts = [piece.encode() for piece, _ in PIECES]
    bounds = np.cumsum([0, *map(len, texts)])
    head = struct.pack("<4sI", b"E5S1", version) + struct.pack("<7i", *SIZES) + struct.pack("<fi", EPS, block)
    head += struct.pack("<5i", len(PIECES), 0, 2, 1, 3) + struct.pack("<Q", int(bounds[-1]))
    head += bounds.astype("<u4").tobytes() + np.array([score for _, score in PIECES], "<f4").tobytes()
    head += b"".join(texts)
    head += (
        struct.pack("<iI", 1, 0) + struct.pack("<IB", ord("ﬁ"), 2) + struct.pack("<2I", ord("f"), ord("i"))
    )
    head += struct.pack("<i", len(own))
    start = len(head) + sum(2 + len(name) + struct.calcsize("<BIQQ") for name in own)
    content = b""
    for name, values in own.items():
        head += struct.pack("<H", len(name)) + name.encode()
        quantised = values.dtype.names is not None
        size = 32 * len(values) if quantised else values.size
        head += struct.pack("<BIQQ", quantised, size + numbers, start + len(content), values.nbytes)
        content += values.tobytes()
    return head + content


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedFile:
    file = tmp_path_factory.mktemp("packed") / "model.bin"
    file.write_bytes(written(tensors()))
    return read_packed(file)


def test_the_file_is_read_whole(packed: PackedFile) -> None:
    assert (packed.sizes, packed.eps, packed.pieces) == (SIZES, EPS, PIECES)
    assert (packed.special, packed.normal) == ((0, 2, 1, 3), {"ﬁ": "fi"})
    assert packed.tensors.keys() == tensors().keys()
    for name, values in tensors().items():
        np.testing.assert_array_equal(packed.tensors[name], values.reshape(-1), err_msg=name)


def test_the_model_has_the_numbers_of_the_file(packed: PackedFile) -> None:
    model = PackedModel(packed)
    norms = [one for one in model.modules() if isinstance(one, torch.nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [EPS] * 3
    state = model.transformer.state_dict()
    own = tensors()
    layer = "encoder.layer.0"
    for name, place in {
        "emb.word": "embeddings.word_embeddings.weight",
        "emb.ln.b": "embeddings.LayerNorm.bias",
        "l0.q.w": f"{layer}.attention.self.query.weight",
        "l0.v.b": f"{layer}.attention.self.value.bias",
        "l0.ao.w": f"{layer}.attention.output.dense.weight",
        "l0.aln.w": f"{layer}.attention.output.LayerNorm.weight",
        "l0.fi.w": f"{layer}.intermediate.dense.weight",
        "l0.fo.w": f"{layer}.output.dense.weight",
        "l0.oln.b": f"{layer}.output.LayerNorm.bias",
    }.items():
        np.testing.assert_array_equal(state[place].numpy(), own[name], err_msg=name)
    assert not model.transformer.training
    assert (model.get_max_seq_length(), model.get_embedding_dimension()) == (POSITIONS, HIDDEN)


def test_texts_are_cut_at_the_window_and_padding_has_no_part(packed: PackedFile) -> None:
    model = PackedModel(packed)
    tokens = model.preprocess(["a", "a b a b a b a b"])
    assert tokens["input_ids"].tolist() == [[0, 4, 2, 1, 1], [0, 4, 5, 4, 2]]  # begin … end, padded
    assert tokens["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert model.preprocess(["a  c\tzc"])["input_ids"].tolist()[0][1] == 4
    assert model.preprocess(["a\tb", "a\u200bb"])["input_ids"].tolist() == [[0, 4, 5, 2]] * 2
    with torch.inference_mode():
        together = model(model.preprocess(["a", "a b a b"]))["sentence_embedding"]
        alone = model(model.preprocess(["a"]))["sentence_embedding"]
    torch.testing.assert_close(together[:1], alone, rtol=1e-5, atol=1e-6)


def test_blocks_of_four_bits_are_expanded(tmp_path: Path) -> None:
    block = np.zeros(2, np.dtype([("scale", "<f2"), ("halves", "u1", 16)]))
    block["scale"] = [0.5, 2.0]
    block["halves"][0, 0], block["halves"][1, 15] = 0x3A, 0xF0
    file = tmp_path / "model.bin"
    file.write_bytes(written({"w": block}))
    values = read_packed(file).tensors["w"]
    assert (values.shape, values.dtype) == ((64,), np.float32)
    assert [values[0], values[16], values[1]] == [0.5 * (10 - 8), 0.5 * (3 - 8), 0.5 * -8]
    assert [values[32 + 15], values[32 + 31]] == [2.0 * -8, 2.0 * (15 - 8)]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (written(tensors(), version=2), "version 2"),
        (written(tensors(), block=64), "blocks of 64 weights"),
        (written(tensors(), numbers=1), "emb.word has 224 of 225 numbers"),
        (written(tensors(), numbers=-1), "emb.word has 224 of 223 numbers"),
        (written(tensors())[:-4], "numbers"),
        (b"", "not a packed model"),
        (b"E5S1", "not a packed model"),
    ],
)
def test_another_file_or_part_of_one_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(CorruptData, match=why):
        read_packed(tmp_path / "model.bin")


def test_a_model_without_one_of_its_tensors_is_refused(packed: PackedFile, tmp_path: Path) -> None:
    own = tensors()
    del own["l0.q.w"]
    (tmp_path / "model.bin").write_bytes(written(own))
    with pytest.raises(ValueError, match=r"no tensor encoder\.layer\.0\.attention\.self\.query\.weight"):
        PackedModel(read_packed(tmp_path / "model.bin"))
