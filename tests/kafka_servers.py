"""A real Apache Kafka broker for tests: KRaft, on free ports, in a folder of its own.

The jars come from Maven Central into `.tools/kafka`. Called as a program, this file fetches them:

    python tests/kafka_servers.py fetch

The broker has two listeners: one for anybody, and one that asks for a name and a password
(SASL/PLAIN). Whoever comes by the first may do everything; the others what their ACLs say.
"""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headwater.errors import HeadwaterError
from headwater.runtime.java import find_java_home
from headwater.testing.processes import freeze
from servers import free_port, not_available

VERSION = "4.1.0"
LIBRARIES = Path(__file__).resolve().parent.parent / ".tools" / "kafka" / "libs"
USER, PASSWORD = "headwater", "s3cret-of-the-test"
_CLUSTER = "aGVhZHdhdGVyLXRlc3RzMQ"
_START_TIMEOUT_S = 120
_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>headwater</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
    <version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=300
"""  # noqa: E501


@dataclass
class RunningBroker:
    """A broker that runs, and can be stopped and started again on the same port and files."""

    command: list[str]
    folder: Path
    port: int
    login_port: int
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """Where anybody may come."""
        return f"127.0.0.1:{self.port}"

    @property
    def login_address(self) -> str:
        """Where a name and a password are asked for."""
        return f"127.0.0.1:{self.login_port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [*self.command, "kafka.Kafka", str(self.folder / "server.properties")],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            # A client that has met a closed port waits before it tries again: none does here.
            if not self._listens():
                time.sleep(0.05)
                continue
            client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
            try:
                client.list_topics(timeout=10)
            except KafkaException:
                continue
            return
        raise RuntimeError(f"Kafka did not start: {(self.folder / 'log').read_text()[-1500:]}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Stop it, by default without a chance to tidy up."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(how)
        self.process.wait(90)

    def freeze(self) -> None:
        """Let it hold its connections and answer nothing, until it is thawed."""
        assert self.process is not None
        freeze(self.process.pid)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def kafka_broker() -> Iterator[RunningBroker]:
    """A broker with nothing in it."""
    if not any(LIBRARIES.glob("kafka_*.jar")):
        not_available("Kafka is not there; python tests/kafka_servers.py fetch brings it")
        return
    try:
        java = find_java_home() / "bin" / "java"
    except HeadwaterError as error:
        not_available(str(error))
        return
    folder = Path(tempfile.mkdtemp(prefix="headwater-kafka-"))
    port, login, controller = free_port(), free_port(), free_port()
    (folder / "server.properties").write_text(
        _SETTINGS.format(port=port, login=login, controller=controller, folder=folder,
                         user=USER, password=PASSWORD)
    )  # fmt: skip
    command = [str(java), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
               "-cp", f"{LIBRARIES}/*"]  # fmt: skip
    broker = RunningBroker(command, folder, port, login)
    try:
        formatting = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c"]
        made = subprocess.run(
            [*command, *formatting, folder / "server.properties"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise RuntimeError(f"Kafka's format failed: {made.stdout[-500:]} {made.stderr[-900:]}")
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def fetch_kafka() -> None:
    """Copy the broker's jars, with what it depends on, into `.tools/kafka`."""
    if any(LIBRARIES.glob(f"kafka_*-{VERSION}.jar")):
        return
    folder = Path(tempfile.mkdtemp(prefix="headwater-kafka-"))
    try:
        (folder / "pom.xml").write_text(_POM)
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime",
             f"-DoutputDirectory={folder / 'libs'}"],
            cwd=folder, check=True,
        )  # fmt: skip
        shutil.rmtree(LIBRARIES, ignore_errors=True)
        LIBRARIES.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "libs", LIBRARIES)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:] != ["fetch"]:
        sys.exit(f"usage: {sys.argv[0]} fetch")
    fetch_kafka()
