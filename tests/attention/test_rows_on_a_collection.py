"""Every row of attention on one collection: in Python, by command line and over HTTP, against closed forms.

The closed forms are NumPy on the embeddings of all documents; nothing of the engine is in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from support.attention.three_doors import DOORS, Doors
from support.fakes import HashingEncoder

from dsearch.attention import POOLINGS, SCORES, reinforce_loss, sample
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.attention.string_kernels import STRING_KERNELS
from dsearch.attention_options import FIELD_SCORES, KERNELS, POOLING_NAMES, SCORE_NAMES
from dsearch.engine import Collection, GradientQuery, SearchEngine, SearchLayer, vjp
from dsearch.engine.ranking import whole
from dsearch.engine.search import attend
from dsearch.types import Document

NOUNS = (
    *("apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey"),
    *("ice", "juice", "kale", "lemon", "mango", "nut", "oat", "pear"),
)
KINDS = ["fruit", "bakery", "dairy"]
QUERIES = ["cheese bread", "honey"]
T = 0.1


def shelf() -> list[Document]:
    """Products whose price follows from their words, so that neighbours have like prices."""
    draw = np.random.default_rng(0)
    made: list[Document] = []
    for number in range(300):
        words = draw.choice(len(NOUNS), size=3)
        price = float(words.mean() * 50 + draw.normal() * 5)
        made.append(
            Document(
                id=f"p{number:03d}",
                title=NOUNS[words[0]],
                text=" ".join(NOUNS[word] for word in words),
                metadata={"price": price, "kind": KINDS[int(words.sum()) % 3]} if number % 10 else {},
            )
        )
    people = {"Zhang": "Aston", "Lipton": "Zachary", "Smola": "Alex"}  # without Li, whose value is Mu
    return made + [
        Document(id=last.lower(), title=last, text=f"{last} is a name", metadata={"first": first})
        for last, first in people.items()
    ]


DOCUMENTS = [one for one in shelf() if one.id not in ("p007", "p295")]
IDS = np.array([one.id for one in DOCUMENTS])
PRICED = np.array(["price" in one.metadata for one in DOCUMENTS])
PRICES = np.array([one.metadata.get("price", 0.0) for one in DOCUMENTS])
TITLES = np.array([one.title for one in DOCUMENTS])
KIND = np.array([one.metadata.get("kind", "") for one in DOCUMENTS])


def learned(name: str) -> Head:
    """Two heads with an excitation, or a head with an additive score; W_V and W_O away from their start."""
    generator = torch.Generator().manual_seed(5)
    head = Head(32, heads=2, rank=3) if name == "many" else Head(32)
    if name == "many":
        head.open_excitation(4)
    else:
        head.score = new_score("additive", 32, 6)
    head.open_output(1)
    with torch.no_grad():
        for part in ("query_in", "excitation", "score", "output", "value_delta"):
            for at, parameter in head.named_parameters():
                if at.startswith(part):
                    parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return head.eval()


MANY, SCORED = learned("many"), learned("scored")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Built, fresh and deleted documents; read only."""
    home = tmp_path_factory.mktemp("shop") / "home"
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        collection = engine.create("shop")
        collection.ingest(shelf()[:280])
        collection.upsert(shelf()[280:])
        collection.delete(["p007", "p295"])
        record = {"readout": {"field": "price", "kind": "number", "labels": None}}
        for head in (MANY, SCORED):
            collection.add_model(head, record)
        yield collection


@pytest.fixture(scope="module")
def keys() -> np.ndarray:
    return HashingEncoder().encode_documents([one.content for one in DOCUMENTS]).astype(np.float64)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return HashingEncoder().encode_queries(QUERIES).astype(np.float64)


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def kernel(name: str, distances: np.ndarray, width: float) -> np.ndarray:
    u = distances / width
    return {
        "gaussian": np.exp(-(u**2) / 2),
        "epanechnikov": np.maximum(1 - u**2, 0),
        "boxcar": (u < 1).astype(float),
    }[name]


def mean_and_spread(weights: np.ndarray) -> tuple[float, float]:
    """Of the prices, by weights of the documents that have one."""
    share = weights[PRICED] / weights[PRICED].sum()
    mean = (share * PRICES[PRICED]).sum()
    return mean, np.sqrt((share * (PRICES[PRICED] - mean) ** 2).sum())


def test_the_declared_names_are_those_there_are() -> None:
    assert tuple(SCORES) == SCORE_NAMES
    assert tuple(POOLINGS) == POOLING_NAMES
    assert set(KERNELS) <= set(SCORE_NAMES)
    assert set(FIELD_SCORES) == set(STRING_KERNELS)


# ---- average pooling, kernels and softmax, over all documents


@pytest.mark.parametrize("door", DOORS)
def test_average_pooling_is_the_mean_of_all_documents(doors: Doors, door: str) -> None:
    answer = doors.predict(door, QUERIES, field="price", over="all", pooling="uniform", mode="dense")
    mean, spread = mean_and_spread(np.ones(len(DOCUMENTS)))
    for result in answer["results"]:
        assert result["mean"] == pytest.approx(mean, abs=1e-9)
        assert result["spread"] == pytest.approx(spread, abs=1e-9)
        assert result["candidates"] == PRICED.sum()
        assert result["without_field"] == (~PRICED).sum()
        assert result["covered_mass"] == 1
    assert answer["note"] is None


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("name", "width"), [("gaussian", 0.4), ("epanechnikov", 1.2), ("boxcar", 1.1)])
def test_a_kernel_is_nadaraya_watson_regression(
    doors: Doors, door: str, name: str, width: float, queries: np.ndarray, keys: np.ndarray
) -> None:
    options: dict[str, Any] = {"field": "price", "over": "all", "score": name, "width": width}
    answer = doors.predict(door, QUERIES, mode="dense", **options)
    distances = np.linalg.norm(queries[:, None] - keys, axis=-1)
    for query, result in enumerate(answer["results"]):
        mean, spread = mean_and_spread(kernel(name, distances[query], width))
        assert result["mean"] == pytest.approx(mean, rel=1e-5)
        assert result["spread"] == pytest.approx(spread, rel=1e-4)


@pytest.mark.parametrize("door", DOORS)
def test_softmax_attention_weighs_every_document(
    doors: Doors, door: str, queries: np.ndarray, keys: np.ndarray
) -> None:
    answer = doors.attend(door, QUERIES, over="all", candidates=20, temperature=T, mode="dense")
    weights = softmax(queries @ keys.T / T)
    for query, result in enumerate(answer["results"]):
        assert result["context"] == pytest.approx(weights[query] @ keys, abs=1e-5)
        assert result["weights"] == pytest.approx(np.sort(weights[query])[::-1][:20], abs=1e-6)
        assert result["candidates"] == len(DOCUMENTS)
        assert result["covered_mass"] == 1
        of_id = {one.id: weight for one, weight in zip(DOCUMENTS, weights[query], strict=True)}
        assert [of_id[id] for id in result["ids"]] == pytest.approx(result["weights"], abs=1e-6)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("over", ["all", "candidates"])
@pytest.mark.parametrize("pooling", ["exp", "relu", "sigmoid"])
def test_weights_that_need_not_sum_to_one(
    doors: Doors, door: str, pooling: str, over: str, queries: np.ndarray, keys: np.ndarray
) -> None:
    options: dict[str, Any] = {"pooling": pooling, "over": over, "candidates": 60, "temperature": 0.3}
    answer = doors.attend(door, QUERIES, mode="dense", **options)
    logits = queries @ keys.T / 0.3
    weights = {"exp": np.exp(logits), "relu": np.maximum(logits, 0), "sigmoid": 1 / (1 + np.exp(-logits))}[
        pooling
    ]
    for query, result in enumerate(answer["results"]):
        listed = np.array([list(IDS).index(id) for id in result["ids"]])
        shared = np.arange(len(IDS)) if over == "all" else listed
        assert result["weights"] == pytest.approx(weights[query][listed], abs=1e-5)
        assert result["context"] == pytest.approx(weights[query][shared] @ keys[shared], rel=1e-4, abs=1e-4)
        share = weights[query][shared].sum() / weights[query].sum()
        assert result["covered_mass"] == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize("door", DOORS)
def test_labels_and_evidence_come_from_every_document(
    doors: Doors, door: str, queries: np.ndarray, keys: np.ndarray
) -> None:
    answer = doors.predict(door, QUERIES, field="kind", over="all", temperature=T, mode="dense", limit=3)
    weights = softmax(queries @ keys.T / T) * PRICED
    weights /= weights.sum(1, keepdims=True)
    for query, result in enumerate(answer["results"]):
        shares = {one["label"]: one["share"] for one in result["labels"]}
        for name in KINDS:
            assert shares[name] == pytest.approx(weights[query][name == KIND].sum(), abs=1e-6)
        shown = [one["weight"] for one in result["evidence"]]
        assert shown == pytest.approx(np.sort(weights[query])[::-1][:3], abs=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_hard_attention_takes_the_best_of_all(
    doors: Doors, door: str, queries: np.ndarray, keys: np.ndarray
) -> None:
    answer = doors.attend(door, QUERIES, over="all", candidates=1, pooling="hard", mode="dense")
    for query, result in enumerate(answer["results"]):
        best = keys[(keys @ queries[query]).argmax()]
        assert result["context"] == pytest.approx(best, abs=1e-6)
        assert result["weights"] == [1.0]


# ---- the share that candidates hold


@pytest.mark.parametrize("door", DOORS)
def test_answers_from_candidates_say_how_much_they_hold(
    doors: Doors, door: str, queries: np.ndarray, keys: np.ndarray
) -> None:
    options: dict[str, Any] = {"candidates": 50, "temperature": 0.5, "mode": "dense"}
    weights = softmax(queries @ keys.T / 0.5)
    attended = doors.attend(door, QUERIES, **options)
    ids = [result["ids"] for result in attended["results"]]
    assert [result["candidates"] for result in attended["results"]] == [len(line) for line in ids]
    held = [weight[np.isin(IDS, line)].sum() for weight, line in zip(weights, ids, strict=True)]
    assert max(held) < 0.6
    for answer in (attended, doors.predict(door, QUERIES, field="price", **options)):
        shares = [result["covered_mass"] for result in answer["results"]]
        assert shares == pytest.approx(held, abs=1e-5)
        assert f"{min(held):.1%} of the attention over all 301 documents" in answer["note"]
        assert "over='all'" in answer["note"]
    enough = doors.attend(door, QUERIES, candidates=290, temperature=0.5, mode="dense")
    assert enough["note"] is None


@pytest.mark.parametrize("door", DOORS)
def test_average_pooling_over_candidates_holds_their_share(doors: Doors, door: str) -> None:
    answer = doors.predict(door, QUERIES, field="price", pooling="uniform", mode="dense")
    for result in answer["results"]:
        pooled = result["candidates"] + result["without_field"]
        assert 100 <= pooled <= 125  # the best 100 of the index, and the newer documents
        assert result["covered_mass"] == pytest.approx(pooled / len(DOCUMENTS))
    assert "of the attention over all 301 documents" in answer["note"]


def test_the_share_of_a_large_collection_is_estimated(
    shop: Collection, queries: np.ndarray, keys: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (whole, attend):
        monkeypatch.setattr(module, "COVERAGE_DOCUMENTS", 100)
    monkeypatch.setattr(whole, "SAMPLE", 200)
    found = shop.attend(QUERIES, candidates=30, temperature=0.5, mode="dense")
    weights = softmax(queries @ keys.T / 0.5)
    exact = [weight[np.isin(IDS, line)].sum() for weight, line in zip(weights, found.ids, strict=True)]
    assert found.output.covered_mass is not None
    assert found.output.covered_mass.numpy() == pytest.approx(exact, abs=0.02)
    assert found.note is not None
    assert "about" in found.note


# ---- command line


def test_the_command_line_shows_and_draws(doors: Doors, tmp_path: Path, unchecked: None) -> None:
    path = tmp_path / "weights.svg"
    code, out, err = doors.terminal("attend", *QUERIES, "-c", "shop", "-k", "3", "--heatmap", path)
    assert code == 0, err
    assert out.count("%") == 6
    assert "over --over all" not in err
    assert path.read_text().lstrip().startswith("<?xml")
    code, out, err = doors.terminal(
        "predict", *QUERIES, "-c", "shop", "--field", "price", "--pooling", "uniform", "--heatmap", path
    )
    assert code == 0, err
    assert out.count("price ≈ ") == 2
    assert "use --over all for all of it, or more --candidates" in err
    code, _, err = doors.terminal("attend", "honey", "-c", "shop", "--over", "some")
    assert code == 1
    assert "over='some'; use candidates or all" in err


def test_results_over_all_do_not_depend_on_the_number_listed(doors: Doors) -> None:
    few = doors.attend("python", QUERIES, over="all", candidates=3)["results"]
    many = doors.attend("python", QUERIES, over="all", candidates=200)["results"]
    for one, other in zip(few, many, strict=True):
        assert one["weights"] == pytest.approx(other["weights"][:3], rel=1e-4)
        assert one["context"] == pytest.approx(other["context"], abs=1e-5)
    json.dumps(few)


# ---- weights of hits


def test_weights_of_a_search_do_not_depend_on_the_limit(shop: Collection, doors: Doors) -> None:
    def weights(limit: int, **options: Any) -> dict[str, list[float]]:
        url = "/v1/collections/shop/search"
        answered = doors.client.post(url, json={"query": "honey", "limit": limit, **options}).json()
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        code, out, err = doors.terminal("search", "honey", "-c", "shop", "-k", str(limit), "--json", *flags)
        assert code == 0, err
        hits = {
            "http": answered["hits"],
            "command line": json.loads(out)["hits"],
            "python": [hit.to_dict() for hit in shop.search("honey", limit=limit, **options).hits],
        }
        return {door: [hit["weight"] for hit in of_door] for door, of_door in hits.items()}

    few, many = weights(10, candidates=120), weights(130, candidates=120)
    for door, first in few.items():
        assert len(first) == 10
        assert first == many[door][:10]
        assert sum(many[door]) <= 1 + 1e-5
    assert few["python"] == few["http"] == few["command line"]
    usual = weights(10)
    for limit in (100, 150, 290):
        for door, of_door in weights(limit).items():
            assert of_door[:10] == pytest.approx(usual[door], rel=1e-4)
    shallow = weights(10, candidates=5)["python"]
    assert sum(shallow) > sum(few["python"])  # fewer share the attention


# ---- a database: exact and approximate match of a field


@pytest.mark.parametrize("door", DOORS)
def test_exact_match_gives_the_value_of_the_equal_key(doors: Doors, door: str) -> None:
    options: dict[str, Any] = {"field": "first", "match_field": "title", "pooling": "hard"}
    for query, value in {"Lipton": {"label": "Zachary", "share": 1.0}, "Li": None, "lipton": None}.items():
        (result,) = doors.predict(door, [query], score="exact_match", **options)["results"]
        assert (result["labels"] or [None])[0] == value
    answer = doors.attend(door, ["honey", "Turing"], score="exact_match", match_field="title")
    result, nothing = answer["results"]
    assert (nothing["ids"], nothing["weights"], nothing["candidates"]) == ([], [], 0)
    assert not any(nothing["context"])
    assert "no document is in reach of 1 query" in answer["note"]
    for over in ("candidates", "all"):
        predicted = doors.predict(door, ["Turing"], score="exact_match", over=over, **options)
        assert (predicted["results"][0]["kind"], predicted["results"][0]["candidates"]) == (None, 0)
        assert "no document is in reach of 1 query" in predicted["note"]
    assert result["weights"] == pytest.approx([1 / (TITLES == "honey").sum()] * len(result["weights"]))


@pytest.mark.parametrize("door", DOORS)
def test_without_li_the_query_li_gives_the_value_of_lipton(doors: Doors, door: str) -> None:
    options: dict[str, Any] = {"score": "fuzzy", "match_field": "title"}
    (result,) = doors.predict(door, ["Li"], field="first", pooling="hard", **options)["results"]
    assert result["labels"] == [{"label": "Zachary", "share": 1.0}]
    ratios = np.array([SequenceMatcher(None, "Li", one, autojunk=False).ratio() for one in TITLES])
    (soft,) = doors.attend(door, ["Li"], over="all", **options)["results"]
    assert soft["weights"] == pytest.approx(np.sort(ratios / ratios.sum())[::-1][: len(soft["weights"])])
    prefixes = np.array([2 * one.startswith("Li") / len(one) for one in TITLES])
    (begins,) = doors.attend(door, ["Li"], score="prefix", match_field="title")["results"]
    assert begins["ids"] == [*IDS[prefixes > 0]]


# ---- documents as queries: a history, self-attention, the gradient


@pytest.mark.parametrize("door", DOORS)
def test_an_item_attends_to_a_history_and_documents_to_each_other(
    doors: Doors, door: str, keys: np.ndarray
) -> None:
    history = ["p001", "p002", "p003", "p004", "p005", "p006"]
    rows = [[*IDS].index(id) for id in history]
    options: dict[str, Any] = {"among": history, "temperature": T}
    weights = softmax(keys[rows] @ keys[rows].T / T)
    answer = doors.attend(door, [], ids=history, **options)  # self-attention of six documents
    for query, result in enumerate(answer["results"]):
        assert result["context"] == pytest.approx(weights[query] @ keys[rows], abs=1e-5)
    target = keys[[*IDS].index("p100")]
    rest = softmax(keys[rows[1:]] @ target / T)
    answer = doors.attend(door, [], ids=["p100"], exclude=history[:1], **options)
    (result,) = answer["results"]
    assert {*result["ids"]} == {*history[1:]}
    assert result["context"] == pytest.approx(rest @ keys[rows[1:]], abs=1e-5)


def test_the_gradient_by_the_query_is_the_covariance_of_the_keys(
    shop: Collection, client: TestClient, queries: np.ndarray, keys: np.ndarray
) -> None:
    """∂ context / ∂ query = Cov_weights(keys) / T; the command line has no gradients."""
    weights = softmax(queries @ keys.T / T)
    away = keys - (weights @ keys)[:, None]
    covariance = np.einsum("qd,qdi,qdj->qij", weights, away, away)
    upstream = np.random.default_rng(0).normal(size=queries.shape)
    options: dict[str, Any] = {"mode": "dense", "over": "all", "temperature": T}
    asked = GradientQuery(states=torch.as_tensor(queries), dtype="float64", options=options)  # type: ignore[arg-type]
    expected = np.einsum("qij,qj->qi", covariance, upstream) / T
    assert vjp(shop, asked, context=upstream).states == pytest.approx(expected, abs=1e-6)
    body = {"vectors": queries.tolist(), "dtype": "float64", **options}
    stamp = client.post("/v1/collections/shop/attend", json=body).json()
    body |= {"stamp": {name: stamp[name] for name in ("generation", "model", "sequence")}}
    answer = client.post("/v1/collections/shop/vjp", json={**body, "grad_context": upstream.tolist()})
    assert np.array(answer.json()["states"]) == pytest.approx(expected, abs=1e-6)


# ---- versions: W_V, W_O, several heads with an excitation, a learned score; search or predict


@pytest.mark.parametrize("over", ["candidates", "all"])
@pytest.mark.parametrize("door", DOORS)
def test_heads_values_and_projection_of_a_version(
    doors: Doors, door: str, over: str, queries: np.ndarray, keys: np.ndarray
) -> None:
    one = {name: tensor.double().numpy() for name, tensor in MANY.state_dict().items()}
    moved = queries[:, None] + np.einsum("hir,hrj,bj->bhi", one["query_out"], one["query_in"], queries)
    moved *= np.linalg.norm(queries, axis=-1)[:, None, None] / np.linalg.norm(moved, axis=-1, keepdims=True)
    squeezed = moved.mean(1) / np.linalg.norm(moved.mean(1), axis=-1, keepdims=True)
    hidden = torch.nn.functional.gelu(torch.as_tensor(squeezed @ one["excitation.squeeze"].T)).numpy()
    shares = softmax(one["mixture_logits"] + hidden @ one["excitation.excite"].T)
    weights = np.einsum("bh,bhd->bd", shares, softmax(moved @ keys.T / T))
    check_version(doors, door, "v1", over, one, weights, keys)


@pytest.mark.parametrize("door", DOORS)
def test_the_score_of_a_version_is_the_one_that_it_learned(
    doors: Doors, door: str, queries: np.ndarray, keys: np.ndarray
) -> None:
    one = {name: tensor.double().numpy() for name, tensor in SCORED.state_dict().items()}
    w, u, v = (one[f"score.additive.{part}"] for part in ("query_weight", "key_weight", "vector"))
    scores = np.tanh((queries @ w.T)[:, None] + (keys @ u.T)[None]) @ v
    check_version(doors, door, "v2", "all", one, softmax(scores / T), keys)


def check_version(
    doors: Doors,
    door: str,
    model: str,
    over: str,
    state: dict[str, np.ndarray],
    weights: np.ndarray,
    keys: np.ndarray,
) -> None:
    """Context Σ w W_V e and output W_O context + b of `attend`, and the output as the mean of `predict`."""
    contexts = weights @ (keys + keys @ state["value_delta"].T)
    outputs = contexts @ state["output.weight"].T + state["output.bias"]
    options: dict[str, Any] = {"model": model, "over": over, "temperature": T, "mode": "dense"}
    options |= {"candidates": len(DOCUMENTS)}
    for query, result in enumerate(doors.attend(door, QUERIES, **options)["results"]):
        assert result["weights"] == pytest.approx(np.sort(weights[query])[::-1], abs=1e-5)
        assert result["context"] == pytest.approx(contexts[query], abs=1e-4)
        assert result["output"] == pytest.approx(outputs[query], abs=1e-4)
    for query, result in enumerate(doors.predict(door, QUERIES, field="price", **options)["results"]):
        assert (result["values"], result["mean"]) == ("learned", pytest.approx(outputs[query, 0], abs=1e-4))


# ---- hard attention by reinforcement


def test_documents_drawn_by_their_weights_teach_by_their_grades(
    shop: Collection, queries: np.ndarray, keys: np.ndarray
) -> None:
    """The gradient of REINFORCE in each query, held against the one worked out by hand."""
    weights = softmax(queries @ keys.T / T)
    layer = SearchLayer(
        shop.snapshot, shop.head("v0"), mode="dense", temperature=T, candidates=len(DOCUMENTS)
    )
    states = torch.tensor(queries, dtype=torch.float32, requires_grad=True)
    found = layer(states)
    places = sample(found.weights.detach(), 16, torch.Generator().manual_seed(3))
    grades = (places == 0).float()  # the first candidate of each query is worth something
    reinforce_loss(found.weights.log(), places, grades).mean().backward()
    assert states.grad is not None
    for query, row in enumerate(places.numpy()):
        rows = [[*IDS].index(shop.ids_at(shop.snapshot, found.positions)[query][place]) for place in row]
        paid = grades[query].numpy()
        ahead = paid - (paid.sum() - paid) / 15  # of the mean of the other draws
        slopes = (keys[rows] - weights[query] @ keys) / T
        assert states.grad[query].numpy() == pytest.approx(-(ahead @ slopes) / 16 / len(QUERIES), abs=1e-4)
