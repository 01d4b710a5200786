"""Real servers for the tests of this folder, one at a time.

The stage `.ci/stages/engines` installs the engines and names those that are there: without
EAGLE3_ENGINE_VLLM, EAGLE3_ENGINE_LLAMACPP or EAGLE3_ENGINE_TRANSFORMERS the tests of that engine
are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from room import Rack

from engines.serve import Engine


@pytest.fixture(scope="session")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    made = Rack(tmp_path_factory.mktemp("engines"))
    yield made
    made.clear()


@pytest.fixture(scope="session", params=list(Engine), ids=str)
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine that the stage has installed."""
    one = Engine(request.param)
    variable = f"EAGLE3_ENGINE_{one.name}"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set: run .ci/stages/engines")
    return one
