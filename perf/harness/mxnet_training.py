"""Training by MXNet over its own store and over ringcoll's: images a second on several hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import places, report, rounds
from .jobs import Part, Spec
from .measured import Measured
from .places import Pythons
from .table_runs import MXNET, MXNET_BARE, MXNET_OURS, PEERS, Note, Settings, driver_spec

MODELS = {"lenet": "LeNet, gluon.Trainer", "mlp": "MLP, Module"}
STORES = (MXNET, MXNET_OURS, MXNET_BARE)
IMAGES = 64  # of each worker in a step
HOSTS = [1, 2, 4]


@dataclass
class Training(Measured):
    """Steps of one model on so many hosts, each with a server and a worker. The only size is
    IMAGES."""

    hosts: int = 1
    model: str = "lenet"

    @property
    def place(self) -> str:
        return f"{self.hosts} host{'s' * (self.hosts > 1)} at {self.rate}"

    def images_s(self, store: str) -> float | None:
        """Of all workers together."""
        seconds = self.seconds(store, IMAGES)
        return IMAGES * self.hosts / seconds if seconds else None

    def faster(self, store: str) -> float | None:
        """Images a second over a store in those over MXNet's own."""
        return self.ratio(MXNET, IMAGES, to=store)


def _specs(
    pythons: Pythons, model: str, hosts: int, parts: list[Part]
) -> tuple[list[Spec], dict[str, str]]:
    specs, missing = [], {}
    for name in STORES:
        peer = PEERS[name]
        if hosts < peer.least_servers:
            continue
        found = pythons.find(peer)
        if not found:
            missing[name] = f"{peer.module} is not installed for {' or '.join(pythons.paths)}"
            continue
        words = ["0", str(hosts), *peer.words, model]
        spec = driver_spec(name, found[0], "mxnet_training", words, parts)
        spec.version = found[1]
        specs.append(spec)
    return specs, missing


def measure(rate: str, hosts: int, model: str, settings: Settings, note: Note) -> Training:
    """Interleaves the steps over both stores."""
    results = report.Results(model, MXNET_OURS, "", [], {}, {}, {IMAGES: f"{IMAGES} images"})
    training = Training(rate, "training", results, 2 * hosts, hosts, model)
    rounds.progress(f"training of {MODELS[model]}, {training.place}")
    with places.parts_of([rate] * hosts, [*range(hosts), *range(hosts)]) as parts:
        specs, missing = _specs(settings.pythons, model, hosts, parts)
        note({spec.name: spec.version for spec in specs}, missing)
        started = rounds.start_jobs(specs, training.ranks, settings.logs, results)
        try:
            plan = rounds.Plan([IMAGES], settings.rounds, settings.visit_s, settings.size_limit_s)
            rounds.run_rounds(started, training.ranks, plan, results)
        finally:
            rounds.close_jobs(started)
    return training


def document(training: Training) -> list[dict[str, Any]]:
    """As JSON has them."""
    return [
        {
            "place": training.place,
            "hosts": training.hosts,
            "model": training.model,
            "store": store,
            "images_a_step": IMAGES,
            "images_s": training.images_s(store),
            "rounds_s": seconds,
        }
        for (_, store, _), seconds in training.results.rounds.items()
    ]


def table(trainings: list[Training]) -> str:
    """A row for each model and number of hosts."""
    rows = []
    for one in trainings:
        cells = [f"{MODELS[one.model]}", str(one.hosts)]
        for store in STORES:
            rate, faster = one.images_s(store), one.faster(store)
            text = "–" if rate is None else f"{rate:,.0f}"
            cells.append(text if faster is None or store == MXNET else f"{text} ({faster:.2f})")
        rows.append(cells)
    return report.table(["", "hosts", *STORES], rows)
