"""What a launch found out, while it is still on its way to the host."""

from typing import NamedTuple

from loopwise.config import InputError
from loopwise.engine.job import Job
from loopwise.engine.readback import Readback
from loopwise.engine.sampler import Readings
from loopwise.engine.sequence import Made, Sequence


def check_lag(wanted: int | None, usual: int) -> int:
    """How many launches late results are read; `InputError` for what is neither 0 nor 1."""
    if wanted not in (None, 0, 1):
        raise InputError(f"lag is {wanted}: use 0 (wait for exits) or 1 (read them a launch later)")
    return usual if wanted is None else wanted


class Exits(NamedTuple):
    """Verdicts of a core launch that are still on their way: about `jobs`, some of which left anyway (`known`)."""

    jobs: list[Job]
    known: list[bool]
    verdicts: Readback

    def left(self) -> list[Job]:
        """Whose rows had left without the planner's knowing."""
        found = zip(self.jobs, self.known, self.verdicts.take()[0], strict=True)
        return [job for job, known, verdict in found if verdict and not known]


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
