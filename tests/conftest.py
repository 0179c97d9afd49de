"""What every test may use: markers by folder, the order of groups, settings and a Spark session.

A folder says what its tests need (`tests/spark` a session, `tests/server` a real server,
`tests/crash` and `tests/contract` processes to kill, `tests/sim` patience), and cheap groups
run first; several workers begin with the long ones, so that all of them end together. With
`HEADWATER_REQUIRE_ALL=1`, as in continuous integration, a skipped test is a failed one.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import servers
from headwater import crash_points
from headwater.config import Settings

ROOT = Path(__file__).resolve().parent.parent
GROUPS = (
    "architecture", "docs", "unit", "property", "golden", "sim", "spark", "server", "crash",
    "contract",
)  # fmt: skip
MARKED = {
    "sim": "slow", "spark": "spark", "server": "server", "crash": "crash", "contract": "crash"
}  # fmt: skip
REQUIRE_ALL = os.environ.get("HEADWATER_REQUIRE_ALL", "") not in ("", "0")

hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if REQUIRE_ALL else "desk")


def group_of(path: Path) -> str:
    """The folder right under tests/ that a test file lies in."""
    return path.relative_to(ROOT / "tests").parts[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if marker := MARKED.get(group_of(item.path)):
            item.add_marker(marker)
    order = reversed(GROUPS) if hasattr(config, "workerinput") else GROUPS
    rank = {group: place for place, group in enumerate(order)}
    items.sort(key=lambda item: rank.get(group_of(item.path), len(GROUPS)))


def _refuse_skip(report: Any) -> None:
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"HEADWATER_REQUIRE_ALL is set, and this was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.fixture(autouse=True)
def _java_of_short_lives(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are killed after seconds do without the compiler that pays after minutes."""
    if group_of(request.path) == "crash":
        monkeypatch.setenv("JDK_JAVA_OPTIONS", servers.QUICK_JAVA)


@pytest.fixture(autouse=True)
def _no_crash_plan_left() -> Iterator[None]:
    """A crash plan of one test never reaches the next."""
    yield
    crash_points.install_hook(None)


def small_settings() -> Settings:
    """Settings that fit a test: short intervals, little memory, two cores."""
    return Settings().change(
        {
            "barrier_interval_ms": 100,
            "maintenance_interval_s": 0.2,
            "restart_backoff_ms": 10,
            "restart_backoff_max_ms": 200,
            "spark_master": "local[2]",
            "spark_driver_memory": "3g",
            "spark_java_options": servers.QUICK_JAVA,
            "takeover_wait_s": 1.0,
        }
    )


@pytest.fixture
def settings() -> Settings:
    """Settings that fit a test."""
    return small_settings()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of the run."""
    from headwater.runtime.spark import start_spark

    session = start_spark(small_settings())
    yield session
    session.stop()
