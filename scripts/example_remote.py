"""A network in one process learns through a search engine in another, and the engine's head learns with it.

The server holds 400 labelled images of digits (8 × 8). Here is a small network that turns a question, and no
image of the memory: it asks over HTTP, and one loss trains the network here and the head there. Every five
steps a new head is handed in and answers everybody, also those who ask without the network. Test accuracy,
mean of 3 seeds, a minute:

engine at first 0.947  engine alone 0.981  network and engine 0.981
"""

import multiprocessing
import socket
from tempfile import TemporaryDirectory

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import nll_loss, normalize, one_hot

from dsearch import Client, Document, RemoteSearch
from dsearch.threads import set_threads


def serve(listening, images, digits):  # in a process of its own
    from dsearch import SearchEngine, create_app
    from dsearch.service.server import run_server

    set_threads(1)
    with TemporaryDirectory() as home, SearchEngine(home) as engine:
        cards = [Document(str(i), f"image {i}", metadata={"digit": int(d)}) for i, d in enumerate(digits)]
        engine.create("digits", dimension=64).upsert(cards, images)
        run_server(create_app(engine), sockets=[listening])


class Classifier(torch.nn.Module):
    def __init__(self, client):
        super().__init__()
        self.turn = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
        self.memory = RemoteSearch(client, "digits", mode="dense", train_head=True)
        known = client.documents("digits", limit=1000).documents
        self.digit_of = {document.id: document.metadata["digit"] for document in known}

    def forward(self, images, turned):
        question = normalize(images + 0.1 * self.turn(images), dim=-1) if turned else images
        return self.memory(question, values=self.digits).context  # the share of each digit

    def digits(self, ids):  # of the candidates of each question, which are equally many
        return one_hot(torch.tensor([[self.digit_of[id] for id in line] for line in ids]), 10).float()


def train(model, images, digits, steps=100):
    here = torch.optim.AdamW(model.turn.parameters(), lr=3e-3)
    there = torch.optim.AdamW(model.memory.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        few = torch.randint(len(images), (64,))
        shares = model(images[few], turned=True), model(images[few], turned=False)
        loss = sum(nll_loss((share + 1e-3).log(), digits[few]) for share in shares)
        loss.backward()
        here.step()
        here.zero_grad()
        if step % 5 == 0:
            there.step()
            there.zero_grad()
            model.memory.publish({"loss": loss.item()}, promote=True)


def accuracy(model, images, digits, turned):
    with torch.no_grad():
        return (model(images, turned).argmax(1) == digits).float().mean().item()


def compare(seed):
    torch.manual_seed(seed)
    pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
    images = normalize(pixels, dim=-1).float()
    memory, asking, testing = torch.randperm(len(images)).split([400, 857, 540])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        what = (listening, images[memory].numpy(), digits[memory].numpy())
        server = multiprocessing.get_context("spawn").Process(target=serve, args=what)
        server.start()
        address = "http://127.0.0.1:{1}".format(*listening.getsockname())
    with Client(address, retries=8) as client:
        client.ready()
        model, test = Classifier(client), (images[testing], digits[testing])
        found = {"engine at first": accuracy(model, *test, turned=False)}
        train(model, images[asking], digits[asking])
        found["engine alone"] = accuracy(model, *test, turned=False)
        found["network and engine"] = accuracy(model, *test, turned=True)
    server.terminate()
    server.join()
    return found


if __name__ == "__main__":
    set_threads(1)
    runs = [compare(seed) for seed in range(3)]
    print(*(f"{name} {sum(run[name] for run in runs) / 3:.3f}" for name in runs[0]), sep="  ")
