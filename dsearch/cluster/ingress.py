"""The HTTP service on a cluster, by Ray Serve: the same application, with searches answered by shards.

proxy → ingress replica (the FastAPI application of dsearch/service) → encoder replicas → shard actors
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.cluster.coordinator import READY_S
from dsearch.errors import Command, DsearchError, EncoderUnavailable, InvalidRequest, Unavailable
from dsearch.types import Mode

if TYPE_CHECKING:
    from dsearch.cluster.search.search import EncodedQueries
    from dsearch.engine import SearchEngine
    from dsearch.service.telemetry import LogFormat

APPLICATION = "dsearch"
LARGEST_BATCH = 32
BATCH_WAIT_S = 0.002
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class IngressSettings:
    """Settings of ingress and encoder replicas, names and numbers only.

    Attributes:
        home: folder of collections, present on every machine with a replica of ingress or encoder.
        encoder: name or folder of a model.
        device: device of the encoder.
        dtype: precision of the encoder; the backend's own when None.
        backend: backend of the encoder; as the setting of that name.
        cache: folder of exported encoders on each machine; its own when None.
        threads: threads of native libraries, in each replica.
        hosts: host names that requests may be addressed to.
        origins: other origins whose pages may use the service.
        require_key: whether every request needs an API key.
        query_timeout_s: timeout of a search that does not set its own.
        next_encoder: name or folder of the model that migrated collections have; `encoder` when None.
        explore: share of search pages on which a coin swaps two positions.
        log_level: of the log that each replica writes to stderr.
        log_format: text, or json.
    """

    home: str
    encoder: str
    device: str = "cpu"
    dtype: str | None = None
    backend: str = "auto"
    cache: str | None = None
    threads: int = 1
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    origins: tuple[str, ...] = ()
    require_key: bool = False
    query_timeout_s: float = 2.0
    next_encoder: str | None = None
    explore: float = 0.0
    log_level: str = "warning"
    log_format: LogFormat = "text"

    def open_engine(self) -> SearchEngine:
        """Open the home on this replica, with its encoders; files are only read."""
        from dsearch.service.tasks.jobs import open_readonly

        return open_readonly(
            Path(self.home),
            self.encoder,
            self.device,
            self.dtype,
            self.backend,
            self.next_encoder,
            self.cache,
        )

    def set_up(self) -> None:
        """Give this process the threads and the log of a replica."""
        from dsearch.service.telemetry import set_up_logs
        from dsearch.threads import set_threads

        set_threads(self.threads)
        set_up_logs(self.log_level, self.log_format)


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """Queries that an ingress sends to an encoder.

    Attributes:
        collection: that they are of.
        texts: their words.
        mode: of the search; in "keyword" mode they need no embeddings.
        model: version whose encoder is used.
        tokens: whether their token states are wanted.
    """

    collection: str
    texts: list[str]
    mode: Mode
    model: str
    tokens: bool


class EncoderReplica:
    """Encodes waiting queries in batches, for every collection and with the encoder of each model."""

    def __init__(self, settings: dict[str, Any]):
        chosen = IngressSettings(**settings)
        chosen.set_up()
        self._engine = chosen.open_engine()
        _ = self._engine.encoder  # the replica is ready once the encoder is loaded
        self._lock = threading.Lock()

    async def ready(self) -> bool:
        """Return True; Ray answers once the encoder is loaded."""
        return True

    async def encode(self, requests: list[EncodeRequest]) -> list[Any]:
        """Return embeddings and tokens of each request's texts, or its error."""
        return await asyncio.to_thread(self._encode, requests)

    def _encode(self, requests: list[EncodeRequest]) -> list[Any]:
        from dsearch.cluster.search.search import encode_queries

        together: dict[tuple[str, Mode, str, bool], list[int]] = {}
        for number, request in enumerate(requests):
            alike = request.collection, request.mode, request.model, request.tokens
            together.setdefault(alike, []).append(number)
        answers: list[Any] = [None] * len(requests)
        with self._lock:
            for (name, mode, model, wanted), numbers in together.items():
                texts = [text for number in numbers for text in requests[number].texts]
                try:
                    states, tokens = encode_queries(self._engine.collection(name), texts, mode, model, wanted)
                except DsearchError as error:
                    for number in numbers:
                        answers[number] = error
                    continue
                start = 0
                for number in numbers:
                    end = start + len(requests[number].texts)
                    of_request = None if tokens is None else [tuple(of) for of in tokens[start:end]]
                    answers[number] = states[start:end].numpy(), of_request
                    start = end
        return answers


class Ingress:
    """A replica of the HTTP application; Ray Serve calls `__serve_build_asgi_app__` when it starts."""

    def __init__(self, settings: dict[str, Any], encoders: Any):
        self._settings = IngressSettings(**settings)
        self._encoders = encoders

    def __serve_build_asgi_app__(self) -> Any:
        """Create the application."""
        chosen = self._settings
        chosen.set_up()
        from dsearch.cluster.collection import ClusterEngine, Releases
        from dsearch.cluster.shards.remote import RayShards
        from dsearch.service import create_app

        engine = ClusterEngine(
            chosen.home,
            encoder=lambda: chosen.open_engine().encoder,
            next_encoder=None if chosen.next_encoder is None else lambda: chosen.open_engine().next_encoder,
            releases=Releases(live_releases, RayShards),
            encode=self._encode,
            await_encoder=self._await_encoder,
        )
        return create_app(
            engine,
            hosts=chosen.hosts,
            origins=chosen.origins,
            require_key=chosen.require_key,
            query_timeout_s=chosen.query_timeout_s,
            explore=chosen.explore,
            open_engine=chosen.open_engine,
            device=chosen.device,
        )

    def _await_encoder(self) -> None:
        try:
            self._encoders.ready.remote().result(timeout_s=READY_S)
        except TimeoutError:
            raise EncoderUnavailable(f"no replica of the encoder was ready in {READY_S:g} s") from None

    def _encode(
        self, collection: str, texts: Sequence[str], mode: Mode, model: str, tokens: bool
    ) -> EncodedQueries:
        import torch

        from dsearch.cluster.search.search import EncodedQueries
        from dsearch.encoder import TextTokens

        # Called from the search thread, never from the event loop.
        request = EncodeRequest(collection, list(texts), mode, model, tokens)
        answer = self._encoders.encode.remote(request).result()
        if isinstance(answer, DsearchError):
            raise answer
        states, of_texts = answer
        encoded = None if of_texts is None else [TextTokens(*of_text) for of_text in of_texts]
        return EncodedQueries(torch.tensor(states), encoded)


def live_releases() -> dict[str, dict[str, Any]]:
    """Return the live releases of the cluster of this process."""
    import ray

    from dsearch.cluster.coordinator import coordinator

    return ray.get(coordinator().live.remote(), timeout=LOOK_S)


def deploy(
    settings: IngressSettings,
    *,
    host: str,
    port: int,
    ingresses: int = 1,
    encoders: int = 1,
    num_cpus: float | None = None,
) -> None:
    """Serve a home on the joined cluster; return once it answers.

    Args:
        settings: settings of the replicas.
        host: address that proxies bind to.
        port: port that they bind to.
        ingresses: replicas of the application.
        encoders: replicas of the encoder.
        num_cpus: logical CPUs of a replica; when None one, or less if fewer are free.

    Raises:
        InvalidRequest: an address that other machines reach, and no API key.
        Unavailable: this cluster serves at another address already.
    """
    from ray import serve

    from dsearch.cluster.connection import answers
    from dsearch.cluster.coordinator import free_share
    from dsearch.service.keys import ApiKeys

    if settings.require_key and not ApiKeys(Path(settings.home)).list():
        raise InvalidRequest(
            f"host={host} can be reached from other machines, and there is no API key; "
            "bind to 127.0.0.1, or make one",
            hint=Command("keys create", ("--name", "NAME", "--scope", "read")),
        )
    described = asdict(settings)
    each = free_share(ingresses + encoders) if num_cpus is None else num_cpus
    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": each}, "max_ongoing_requests": 1024}
    batched = type(
        "EncoderReplica",
        (EncoderReplica,),
        {
            "encode": serve.batch(max_batch_size=LARGEST_BATCH, batch_wait_timeout_s=BATCH_WAIT_S)(
                EncoderReplica.encode
            )
        },
    )
    encoding = serve.deployment(batched, name="encoder", num_replicas=encoders, **options)
    application = serve.deployment(
        serve.ingress()(Ingress), name="ingress", num_replicas=ingresses, **options
    )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(http_options={"host": host, "port": port})
    serve.run(application.bind(described, encoding.bind(described)), name=APPLICATION, route_prefix="/")
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    if not answers(f"{here}:{port}"):
        raise Unavailable(
            f"Ray Serve runs in this cluster at another address than {host}:{port}; stop it with: "
            "dsearch cluster stop"
        )


def undeploy() -> None:
    """Stop serving; shards stay."""
    from ray import serve

    serve.shutdown()
