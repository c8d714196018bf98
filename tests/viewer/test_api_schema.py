"""The schema of the server, and hundreds of requests that it allows or forbids."""

from __future__ import annotations

import pytest
import torch

schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    negative_data_rejection,
    positive_data_acceptance,
)

EXAMPLES = 4  # for each route and kind of request: with a model behind it, each takes a while


@pytest.fixture(autouse=True)
def _vanishing_numbers():
    """Training, in a test before, may have switched them off; hypothesis refuses to go without."""
    torch.set_flush_denormal(False)


def test_every_route_of_the_readme_is_in_the_schema_and_no_other(client):
    import re
    from pathlib import Path

    import saccade

    readme = (Path(saccade.__file__).parent / "viewer" / "README.md").read_text(encoding="utf-8")
    told = {
        (method.lower(), path.replace("NAME", "{name}"))
        for method, path in re.findall(r"`(GET|POST) (/api/[\w./]+)`", readme)
    }
    paths = client.get("/api/openapi.json").json()["paths"]
    served = {(method, path) for path, methods in paths.items() for method in methods}
    assert told - {("get", "/api/openapi.json")} == served


def test_every_route_says_how_it_fails(client):
    schema = client.get("/api/openapi.json").json()
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            for status in ("400", "422", "503"):
                reference = operation["responses"][status]["content"]["application/json"]["schema"]
                assert reference["$ref"].endswith("/Problem"), path


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_answers_have_the_shape_that_the_schema_says(server, mode):
    api = schemathesis.openapi.from_url(f"{server}/api/openapi.json")
    operations = [found.ok() for found in api.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:
        if mode == "positive" or operation.body or operation.path_parameters:
            _try(operation, GenerationMode(mode))


def _try(operation, mode):
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case):
        reply = case.call()
        # A question of the right shape may still be about a head or a run that is not there; and
        # one that is too large is refused with a status that this check does not know of.
        excluded = [positive_data_acceptance]
        excluded += [negative_data_rejection] if reply.status_code == 413 else []
        case.validate_response(reply, excluded_checks=excluded)

    check()
