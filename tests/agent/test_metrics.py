"""Prometheus' endpoint, read by Prometheus' own parser."""

from __future__ import annotations

import re
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from quintal.contracts.subjects import Role
from quintal.errors import SetupError
from quintal_agent import settings as agent_settings
from quintal_agent.app import Agent
from quintal_agent.metrics import Endpoint, name_of, snapshot
from quintal_agent.probes.probe import Observation, Trouble
from quintal_agent.settings import Metrics
from tests.agent.builders import GPU, Scripted, a_device, a_lease, reading, seen, settings
from tests.agent.test_live import running
from tests.agent.test_process import env_of
from tests.support.nats import NatsServer

LOOPBACK = Metrics("127.0.0.1", 0)
NAME = re.compile(r"^quintal_[a-z0-9_]+$")


def fleet() -> list[Scripted]:
    nvidia = Scripted(
        seen(
            a_device(
                memory_bytes=80 * 2**30, busy_bytes=0, process_count=0,
                readings={
                    "power_watts": reading(70.5),
                    "utilization_percent": reading(0),
                    "temperature_celsius": reading(None, "unsupported"),
                    "energy_joules": reading(12.5),
                    "memory_used_bytes": reading(3.0, "stale"),
                },
            ),
            a_device("GPU-b", index=1, health="failed", health_reason="lost"),
        )
    )  # fmt: skip
    amd = Scripted(
        Observation(
            "amd", "amdsmi",
            (a_device("0000-amd", vendor="amd", readings={"power_watts": reading(90.0)}),),
            (Trouble("x", "y"),),
        )
    )  # fmt: skip
    return [nvidia, amd]


async def scraped(nats: NatsServer, tmp_path: Path, name: str) -> tuple[str, list[Sample]]:
    own = settings(nats.access(name, Role.AGENT), tmp_path)
    agent = Agent(own, fleet(), boot="boot-1")
    endpoint = Endpoint(LOOPBACK, lambda: snapshot(agent, name))
    async with running(agent):
        bound = await agent.keeper.bind(None, _ask())  # type: ignore[arg-type]
        assert bound.kind == "bound"
        await agent.lookout.look(agent.keeper.state)
        endpoint.start()
        try:
            import asyncio

            url = f"http://127.0.0.1:{endpoint.port}/metrics"
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        finally:
            endpoint.close()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return text, samples


def _ask() -> object:
    from quintal.contracts.nodes import BindAsk

    return BindAsk(lease=a_lease("l-1", 7, tenant="secret-tenant", project="secret-project"))


@pytest.mark.bus
async def test_every_vendor_is_told_in_one_schema_and_an_absent_value_is_absent(
    nats: NatsServer, tmp_path: Path
) -> None:
    text, samples = await scraped(nats, tmp_path, "prom-1")
    found = {(s.name, s.labels.get("device", "")): s.value for s in samples}
    assert found["quintal_device_power_watts", GPU] == 70.5
    assert found["quintal_device_power_watts", "0000-amd"] == 90
    assert found["quintal_device_utilization_ratio", GPU] == 0, "0 is a value"
    assert found["quintal_device_energy_joules_total", GPU] == 12.5
    absent = {"quintal_device_temperature_celsius", "quintal_device_memory_used_bytes"}
    assert not absent & {name for name, _ in found}
    assert ("quintal_device_power_watts", "GPU-b") not in found
    health = {
        s.labels["state"]
        for s in samples
        if s.name == "quintal_device_health" and s.value and s.labels["device"] == "GPU-b"
    }
    assert health == {"failed"}
    assert found["quintal_device_leases", GPU] == 1
    assert ("quintal_device_held_idle_seconds", GPU) in found
    assert "secret" not in text
    assert "NaN" not in text


@pytest.mark.bus
async def test_names_follow_prometheus_rules_and_no_series_comes_twice(
    nats: NatsServer, tmp_path: Path
) -> None:
    text, samples = await scraped(nats, tmp_path, "prom-2")
    for family in text_string_to_metric_families(text):
        assert family.documentation
        if not family.name.startswith(("process_", "python_")):
            assert NAME.fullmatch(family.name), family.name
            assert not family.name.endswith(("percent", "_ms", "_milliseconds"))
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample
    keys = [(s.name, tuple(sorted(s.labels.items()))) for s in samples]
    assert len(keys) == len(set(keys))


def test_a_readings_name_is_brought_to_base_units() -> None:
    assert name_of("utilization_percent") == ("quintal_device_utilization_ratio", 0.01)
    assert name_of("ecc_uncorrected_count")[0] == "quintal_device_ecc_uncorrected"
    assert name_of("power_watts") == ("quintal_device_power_watts", 1.0)


def test_the_endpoint_is_off_unless_it_is_turned_on(tmp_path: Path) -> None:
    assert agent_settings.read(env_of(tmp_path)).metrics is None
    on = agent_settings.read(env_of(tmp_path, QUINTAL_METRICS="127.0.0.1:9464")).metrics
    assert on == Metrics("127.0.0.1", 9464)


@pytest.mark.parametrize("text", ["0.0.0.0:9464", "10.0.0.7:9464", "[::]:9464"])
def test_another_address_than_loopback_needs_tls(tmp_path: Path, text: str) -> None:
    with pytest.raises(SetupError, match="QUINTAL_METRICS_CERT"):
        agent_settings.read(env_of(tmp_path, QUINTAL_METRICS=text))
    secured = agent_settings.read(
        env_of(tmp_path, QUINTAL_METRICS=text, QUINTAL_METRICS_CERT="c", QUINTAL_METRICS_KEY="k")
    )
    assert secured.metrics is not None
    assert secured.metrics.certificate == Path("c")


@pytest.mark.parametrize(
    "text", ["9464", "localhost", "host:9464", "127.0.0.1:x", "127.0.0.1:70000"]
)
def test_an_address_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(SetupError, match="address:port"):
        agent_settings.read(env_of(tmp_path, QUINTAL_METRICS=text))


@pytest.mark.bus
async def test_with_a_certificate_only_tls_is_answered(nats: NatsServer, tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
         "-out", str(certificate)],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl makes no certificate here")
    agent = Agent(settings(nats.access("prom-3", Role.AGENT), tmp_path), fleet(), boot="boot-1")
    own = replace(LOOPBACK, certificate=certificate, key=key)
    endpoint = Endpoint(own, lambda: snapshot(agent, "prom-3"))
    endpoint.start()
    try:
        context = ssl.create_default_context(cafile=str(certificate))
        url = f"https://127.0.0.1:{endpoint.port}/metrics"
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            assert b"quintal_agent_info" in answer.read()
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(url.replace("https", "http"), timeout=5)
    finally:
        endpoint.close()
