"""The Kafka sink: each delivery is one transaction with its messages and its progress."""

from collections.abc import Iterator
from contextlib import contextmanager

from headwater.errors import ConfigError, SinkUnavailable
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.sinks.kafka.broker_errors import Displaced
from headwater.sinks.kafka.encoders import encoder_of
from headwater.sinks.kafka.messages import checked_format, messages
from headwater.sinks.kafka.options import KafkaOptions
from headwater.sinks.kafka.progress import Progress
from headwater.sinks.kafka.session import (
    SESSIONS,
    Session,
    client_settings,
    committed_progress,
    require_term,
)
from headwater.sinks.kafka.topics import Topics
from headwater.sinks.progress import check_given
from headwater.sinks.sink import Batches, Delivery, SinkSpec


class KafkaSink:
    """A `TransactionalSink`; producers are opened where it is used, and kept there."""

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec
        self._options = KafkaOptions.of(spec.options)
        self._format = checked_format(spec)
        self._encoder = encoder_of(spec, self._format, self._options)
        if self._options.topic == self._options.progress_topic:
            raise ConfigError('options "topic" and "progress.topic" name the same topic')

    def check(self) -> None:
        """Look at both topics, create what is missing, and try every right that is needed."""
        self._encoder.open()
        Topics(self._options, client_settings(self._options)).check()
        with SESSIONS.held(self._spec.ident), self._failing_closes():
            # A producer that runs elsewhere is displaced, and opens again by itself.
            SESSIONS.open(self._spec.ident, self._options, None)

    def begin(self, term: Term) -> Epoch:
        """Displace every other producer, and write our term where an older one stands."""
        with SESSIONS.held(self._spec.ident), self._failing_closes():
            session = SESSIONS.open(self._spec.ident, self._options, term)
            session.take_over(term)
            return session.progress.epoch

    def deliver(self, delivery: Delivery, rows: Batches) -> None:
        """Messages and progress in one transaction.

        Replay: progress that is there says that the messages are, too. An unknown outcome is
        cleared up by the next attempt, which opens a producer and reads progress anew.
        """
        with SESSIONS.held(delivery.sink), self._failing_closes():
            try:
                self._deliver(delivery, rows)
            except Displaced as error:
                self._displaced(delivery, error)

    def _deliver(self, delivery: Delivery, rows: Batches) -> None:
        session = self._session(delivery)
        require_term(delivery.sink, session.progress, delivery.term)
        if session.progress.epoch >= delivery.epoch:
            return
        check_given(delivery, session.progress.epoch)
        self._encoder.open()
        made = messages(self._spec, self._format, self._encoder, delivery, rows)
        session.write(
            made,
            Progress(epoch=delivery.epoch, term=delivery.term, commit_id=delivery.commit_id),
        )

    def _displaced(self, delivery: Delivery, error: Displaced) -> None:
        """Another process has the producer: is it of a newer term, or has it delivered this?"""
        SESSIONS.close(delivery.sink)
        progress = committed_progress(delivery.sink, self._options)
        require_term(delivery.sink, progress, delivery.term)
        if progress.epoch < delivery.epoch:
            raise error

    def drop(self) -> None:
        """Take our record out of the progress topic. Replay: there is none."""
        ident, options = self._spec.ident, self._options
        topics = Topics(options, client_settings(options))
        with SESSIONS.held(ident), self._failing_closes():
            if topics.has_progress() is not None:
                session = SESSIONS.open(ident, options, None)
                if session.progress != Progress():
                    session.write(iter(()), None)
            SESSIONS.close(ident)

    def _session(self, delivery: Delivery) -> Session:
        """The open session, or a new one where another process has delivered meanwhile."""
        session = SESSIONS.found(delivery.sink, self._options)
        if session is None or (
            session.progress.term <= delivery.term and session.progress.epoch < delivery.after
        ):
            return SESSIONS.open(delivery.sink, self._options, delivery.term)
        if not self._options.transactional:
            session.progress = session.read()
        return session

    @contextmanager
    def _failing_closes(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            SESSIONS.close(self._spec.ident)
            if isinstance(error, Displaced):
                raise SinkUnavailable(
                    f'another process writes for sink "{self._spec.name}"',
                    detail=str(error),
                ) from error
            raise
