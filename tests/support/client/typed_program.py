"""A program of a user, which type checkers must not complain about: thirty calls, by each kind of client."""

from __future__ import annotations

import dsearch

with dsearch.open("index") as engine:
    engine.ready()
    names = [info.name for info in engine.collections()]
    made = engine.create_collection("papers", language="german", passages={"tokens": 128})
    print(made.documents, names)
    written = engine.upsert("papers", [{"id": "a", "text": "x"}, dsearch.Document("b", "y")])
    print(written.inserted + written.updated)
    print(engine.get("papers", "a").title)
    print(engine.delete("papers", "a").sequence)
    print(engine.delete_many("papers", ids=["a"], filter=None).missing)
    print(engine.update_metadata("papers", "b", {"x": None}).metadata)
    page = engine.documents("papers", limit=3, filter={"a": 1})
    print(page.next, [one.id for one in page.documents])
    print(engine.facets("papers", ["a"]).facets["a"][0].documents)
    found = engine.search("papers", "x", limit=3, mode="dense", filter={"kind": "class"}, fields=["title"])
    for hit in found.hits:
        print(hit.id, hit.score, hit.weight)
    print([len(one.hits) for one in engine.search_batch("papers", ["a", "b"], explain=True)])
    print(engine.similar("papers", ["b"], unlike=["a"]).hits)
    print(engine.feedback("papers", [{"action_name": "click"}]).events)
    print(engine.own_judgements("papers").queries)
    print(engine.attend("papers", ["x"], include=["keys"]).weights.shape)
    print(engine.predict("papers", ["x"], field="price").predictions[0].mean)
    print(engine.models("papers").live)
    print(engine.promote("papers", "v0").previous, engine.rollback("papers").model)
    print(engine.remember("papers", {"q": "x"}, {"q": {"b": 1.0}}).judgements)
    head = engine.head("papers", "v0")
    print(engine.add_model("papers", head).model)
    task = engine.train("papers", queries={"q": "x"}, judgements={"q": {"b": 1.0}}, epochs=3)
    print(engine.wait_for_task(task.id).state, engine.tasks(state="done").tasks)
    print(engine.evaluate("papers", {"q": "x"}, {"q": {"b": 1.0}}).id)
    print(engine.refresh("papers", kind="SQ8").id, engine.compact("papers").id)
    print(engine.set_alias("now", "papers").previous, engine.aliases())
    layer = dsearch.open_layer(engine, "papers")
    print(layer.version)

with dsearch.Client("http://127.0.0.1:8080") as client:
    print(client.search("papers", "x").hits[0].id)
    remote = dsearch.open_layer(client, "papers")
    print(remote.version)


async def main() -> None:
    async with dsearch.AsyncClient() as client:
        result = await client.search("papers", "x", limit=3)
        print(result.hits[0].id)
        task = await client.train("papers", queries={"q": "x"}, judgements={"q": {"b": 1.0}})
        print((await client.wait_for_task(task.id)).state)
