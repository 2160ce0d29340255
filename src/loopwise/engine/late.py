"""What a launch found out, while it is still on its way to the host."""

from typing import NamedTuple

from loopwise.engine.job import Job
from loopwise.engine.readback import Readback
from loopwise.engine.sampler import Readings
from loopwise.engine.sequence import Made, Sequence


class Exits(NamedTuple):
    """Verdicts of a core launch that are still on their way: about `jobs`, some of which left anyway (`known`)."""

    jobs: list[Job]
    known: list[bool]
    verdicts: Readback


class Tokens(NamedTuple):
    """Tokens of a turn that may still be on their way."""

    sequences: list[Sequence]
    values: Readback
    readings: Readings

    def take(self) -> list[Made]:
        """Token, depth, signal (if its policy reads one and it went through the core) and reading of every row."""
        return [
            Made(token, depth, signal if s.kind.signal and s.output else None, reading)
            for s, token, depth, signal, reading in zip(
                self.sequences, *self.values.take(), self.readings.take(), strict=True
            )
        ]
