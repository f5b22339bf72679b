"""A Ray cluster of two nodes on this machine, for the tests that need one: started once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

CPUS = 4
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "200",
    # A node that is gone is noticed after five seconds in place of half a minute.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes of `CPUS` each, and this process connected to the first."""
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
    from ray.cluster_utils import Cluster

    os.environ |= SETTINGS
    found = Cluster()
    try:
        add_node(found, include_dashboard=False)
        add_node(found)
        ray.init(address=found.address, log_to_driver=False)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def add_node(cluster: Any, **more: Any) -> Any:
    """Add a node; a busy machine may need longer than the half minute that Ray waits."""
    for attempt in range(4):
        # Ports that are known spare a wait that is too short on a busy machine.
        metrics, runtime, dashboard = _free_ports(3)
        try:
            return cluster.add_node(
                num_cpus=CPUS,
                object_store_memory=400 << 20,
                metrics_agent_port=metrics,
                runtime_env_agent_port=runtime,
                dashboard_agent_listen_port=dashboard,
                **more,
            )
        except Exception as error:
            if attempt == 3 or "timed out" not in str(error):
                raise
    raise AssertionError


def _free_ports(count: int) -> list[int]:
    places = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [int(place.getsockname()[1]) for place in places]
    for place in places:
        place.close()
    return found
