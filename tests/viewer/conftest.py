"""A viewer of the little model with two sets of lenses, some runs and a trace.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

TEXT = "Once upon a time, there was a little girl named"
PORT = 8765


@pytest.fixture(scope="session")
def make_head() -> Any:
    """A head's reading of known numbers: ``make_head(layer, head, kl=2.0)``."""
    from saccade.interp.effects.effects import Effect
    from saccade.interp.lenses.top_tokens import TokenValue
    from saccade.interp.readings.reading import HeadReading, LensReading, Source

    def make(layer: int, head: int | None, *, token: str = " x", gain: float = 0.3, **known: Any):
        """``effect=None`` or ``lens=None`` leaves that out; other names are fields of either."""
        effect = {
            "kl": 0.5,
            "on_token": -0.8,
            "direct": -0.5,
            "promotes": (TokenValue(5, " Rome", 0.2),),
            "suppresses": (TokenValue(6, "<b>", -0.3),),
            "lens_agreement": 0.125,
        }
        lens = {
            "kl_from_baseline": 1.0,
            "quality": {"kl": 3.0 - gain, "gain": gain},
            "predicts": (TokenValue(1, token, 0.4), TokenValue(2, " Paris", 0.2)),
            "adds": (TokenValue(2, " Paris", 0.3),),
            "suppresses": (TokenValue(3, "</style>", -0.1),),
        }
        rest = {
            "unembedded": (TokenValue(4, "]]>", 1.0),),
            "attends": (Source(0, token, 0.9), Source(1, "b", 0.07)),
        }
        if head is None:
            rest["kind"] = "residual"
        made = {
            "effect": Effect(**_given(effect, known)),
            "lens": LensReading(**_given(lens, known)),
        }
        return HeadReading(layer=layer, head=head, **{**made, **rest, **known})

    return make


def _given(usual: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The fields, those that are known taken out of ``known``; "suppresses" is of the lens."""
    mine = {name: known.pop(name) for name in list(known) if name in usual and name != "suppresses"}
    if "quality" in usual and "suppresses" in known:
        mine["suppresses"] = known.pop("suppresses")
    return {**usual, **mine}


@pytest.fixture(scope="session")
def make_reading(make_head) -> Any:
    """A reading of known numbers: three layers of five heads, with growing effects."""
    from saccade.interp.lenses.top_tokens import TokenValue
    from saccade.interp.readings.reading import Reading

    def make(
        token: str = "b",
        *,
        heads: Any = None,
        others: Any = (),
        position: int = 1,
        predicted: int = 1,
        **known,
    ):
        if heads is None:
            heads = [
                make_head(
                    at,
                    n,
                    token=token,
                    **{"gain": 0.3 * at, "kl": at + n / 10, **known},
                )
                for at in range(3)
                for n in range(5)
            ]
        return Reading(
            model="<b>model</b>",
            text=f"a{token}",
            tokens=["a", token],
            position=position,
            prediction=tuple(TokenValue(n, f"{n}{token}", 0.5 / 2**n) for n in range(predicted)),
            target=TokenValue(1, f"0{token}", 0.5),
            against=None,
            replaced_by="mean",
            heads=tuple(heads),
            others=tuple(others),
        )

    return make


@pytest.fixture(scope="session")
def lens_folders(stories, tmp_path_factory) -> tuple[Path, Path]:
    """Two sets of lenses on disk."""
    import saccade

    folder = tmp_path_factory.mktemp("lenses")
    for name, method, steps in (("closed", "closed-form", 0), ("polished", "polish", 3)):
        config = saccade.FitConfig(tokens=4096, window=64, rows=16, method=method, steps=steps)
        saccade.fit_lenses(stories, config=config).save(folder / name)
    return folder / "closed", folder / "polished"


@pytest.fixture(scope="session")
def atlas_folder(stories, lens_folders, tmp_path_factory) -> Path:
    """The atlas of three texts that the little model writes, with two roles that are planted."""
    from dataclasses import replace

    import saccade
    from saccade.interp.atlas.atlas_config import AtlasConfig
    from saccade.interp.atlas.build import build_atlas
    from saccade.interp.lenses.self_text import sample_batches

    folder, texts = tmp_path_factory.mktemp("atlas"), []
    for seed, name in enumerate(("red", "green", "blue")):
        batches = sample_batches(stories, n_tokens=1200, window=61, batch=20, seed=seed)
        lines = [
            line
            for batch in batches
            for line in stories.tokenizer.batch_decode(batch.ids, skip_special_tokens=True)
        ]
        texts.append(str(folder / f"{name}.txt"))
        Path(texts[-1]).write_text("\n".join(lines), encoding="utf-8")
    lenses = saccade.load_lenses(lens_folders[0], stories)
    config = AtlasConfig(tokens=1500, window=48, every=12)
    atlas = build_atlas(stories, texts, config, lenses=lenses)
    roles = {
        f"{layer}.{head}": {"induction": head / 8, "duplicate": layer / 5}
        for layer, head in atlas.sites
    }
    replace(atlas, tables={**atlas.tables, "roles": roles}).save(folder / "atlas")
    return folder / "atlas"


@pytest.fixture(scope="session")
def opened(stories, lens_folders):
    """The little model and its lenses."""
    import saccade
    from saccade.viewer.worker import OpenedModel

    lenses = {path.name: saccade.load_lenses(path, stories) for path in lens_folders}
    return OpenedModel(stories, lenses)


@pytest.fixture(scope="session")
def gallery_folder(tmp_path_factory) -> Path:
    """A folder with a run that is done, one that is damaged, a saved trace and a stranger."""
    from saccade.trace.trace import Trace, save_trace

    folder = tmp_path_factory.mktemp("runs")
    _write_run(folder / "adding-gru")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "manifest.json").write_text("{", encoding="utf-8")
    (folder / "damaged" / "log.jsonl").write_text("", encoding="utf-8")
    (folder / "stranger").mkdir()
    weights = torch.tensor([[0.75, 0.25, 0.0], [0.125, 0.5, 0.375]])
    trace = Trace(
        kind="attention",
        steps=("a", "</script><script>alert(1)</script>"),
        memory=("ein", "Hund", "."),
        weights=weights,
        title="ein Hund .",
    )
    save_trace(folder / "dog", trace)
    return folder


def _write_run(folder: Path) -> None:
    from saccade.zoo.training.run_folder import RunFolder

    folder.mkdir()
    run = RunFolder(folder)
    about = {"recipe": "adding-gru", "settings": {"length": 150}, "command": "saccade train x"}
    run.begin({**about, "score": "mse", "system": "SequenceReader", "commit": ""}, {})
    lines = [{"step": step, "epoch": 0, "loss": 1 / step} for step in range(1, 1001)]
    lines += [{"step": 1000, "validation": {"mse": 0.01, "other": 2.0}}]
    run.log.write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
    run.write_metrics({"metric": "mse", "value": 0.0013, "minutes": 4.59, "evaluated": "2026"})


@pytest.fixture(scope="session")
def config(stories, lens_folders, gallery_folder, atlas_folder):
    """What the viewer was started with."""
    from saccade.viewer.worker import ViewConfig

    return ViewConfig(
        model=stories.name,
        lenses=tuple(map(str, lens_folders)),
        atlas=atlas_folder,
        folders=(gallery_folder,),
    )


@pytest.fixture
def session(config, opened):
    """A session whose model is open already, with nothing in its caches."""
    from dataclasses import replace

    from saccade.viewer.session import Session

    found = Session(replace(config, has_model=False))
    found.use(opened)
    yield found
    found.close()


@pytest.fixture
def client(session):
    """Asks the server, as the page does."""
    from fastapi.testclient import TestClient

    from saccade.viewer.app import make_app
    from saccade.viewer.security import Address

    app = make_app(session, Address(port=PORT))
    with TestClient(
        app, base_url=f"http://127.0.0.1:{PORT}", raise_server_exceptions=False
    ) as found:
        yield found


@pytest.fixture
def ask(client) -> Any:
    """The answer of a route, which must be one."""

    def get(route: str, question: dict[str, Any] | None = None) -> Any:
        path = f"/api/{route}"
        reply = client.get(path) if question is None else client.post(path, json=question)
        assert reply.status_code == 200, reply.text[:500]
        return reply.json()

    return get


@pytest.fixture(scope="session")
def served() -> Any:
    """Serves a session: ``with served(session) as url``."""
    return RunningServer


@pytest.fixture(scope="session")
def server(config, opened, served) -> Iterator[str]:
    """The address of a server that runs for the whole session."""
    from dataclasses import replace

    from saccade.viewer.session import Session

    session = Session(replace(config, has_model=False))
    session.use(opened)
    with served(session) as url:
        yield url


class RunningServer:
    """A server of a session, in a thread."""

    def __init__(self, session: Any) -> None:
        import uvicorn

        from saccade.viewer.app import make_app
        from saccade.viewer.security import Address

        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        app = make_app(session, Address(port=port))
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self.url

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()
