"""Fixtures: an agent to a test, and one zygote to a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime.harness import Agent, Peer, agent


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """The agent of a file's zygote; its workers are each test's own."""
    with agent(tmp_path_factory.mktemp("n")) as made:
        yield made


@pytest.fixture(scope="module")
def line(nursery: Agent) -> Peer:
    """The line to a loaded zygote that has numpy, as the samples need it."""
    return nursery.zygote(preload=["numpy"])


@pytest.fixture
def boss(nursery: Agent) -> Iterator[Agent]:
    """The agent, for a test whose workers end with it."""
    yield nursery
    while nursery.workers:
        nursery.workers.pop().close()


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Agent]:
    """An agent without a zygote."""
    with agent(tmp_path) as made:
        yield made
