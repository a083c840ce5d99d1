"""Options and fixtures that several test files share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew from what is emitted now")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of model files that tests compile."""
    return Path(__file__).parent / "models"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Two workers share two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
