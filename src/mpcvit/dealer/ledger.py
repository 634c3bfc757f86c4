"""Ledger: which blocks of the parties' random streams are drawn next, and which may be again.

Every block is drawn for one array. The operands of a step begin where those of
the step before ended, one after the other. The mask of a kernel alone is drawn
again, whole, as the right operand of later products; what these products are
masked with, their last operand, is always fresh. `docs/dealer.md` says why that
gives nothing away.

The dealer, both parties' gateways and a rehearsal keep the same ledger.
"""

from dataclasses import dataclass, replace

from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.framing import Call
from mpcvit.dealer.script import RIGHT, Kind, Step


@dataclass(frozen=True, kw_only=True)
class KernelMask:
    """A range that hides one kernel."""

    begins: int
    width: int  # bytes of a ring element
    length: int  # bytes


class Ledger:
    """The next block, and the ranges of kernels' masks, by number."""

    def __init__(self, start: int = 0) -> None:
        self.next = start
        self.kernels: list[KernelMask] = []

    def enter(self, step: Step) -> tuple[int, ...]:
        """Enter the next step, and return where each of its operands begins."""
        counts = self._counts(step)
        if step.opens_kernel:
            if step.kernel != len(self.kernels):
                raise DealerError(f"kernel {step.kernel} is out of turn, or used again")
            mask = KernelMask(begins=counts[0], width=step.width, length=step.operand_bytes[0])
            self.kernels.append(mask)
        self.next += step.blocks
        return counts

    def enter_call(self, call: Call, *, opens_kernel: bool = False) -> Step:
        """Return the step that a request of SPU is; refuse one that is none."""
        step = call.step
        if opens_kernel:
            if step.kind is not Kind.MUL:
                raise DealerError(f"a {step.kind.value} cannot be the first use of a kernel")
            step = replace(step, kernel=len(self.kernels))
        elif step.kind is Kind.DOT and call.counts[RIGHT] < self.next:
            step = replace(step, kernel=self._kernel_at(call.counts[RIGHT]))
        if call.counts != self._counts(step):
            raise DealerError(
                f"SPU draws an operand of a {step.kind.value} from a range that is neither fresh "
                "nor a kernel's, which would give masks away; such a program cannot be run"
            )
        self.enter(step)
        return step

    def _counts(self, step: Step) -> tuple[int, ...]:
        if not step.replays_kernel:
            return step.counts(self.next)
        assert step.kernel is not None
        if step.kernel >= len(self.kernels):
            raise DealerError(f"kernel {step.kernel} was not used before")
        mask = self.kernels[step.kernel]
        if (mask.width, mask.length) != (step.width, step.operand_bytes[RIGHT]):
            raise DealerError(f"a {step.kind.value} takes kernel {step.kernel} for another size")
        return step.counts(self.next, replayed=mask.begins)

    def _kernel_at(self, begins: int) -> int | None:
        found = (number for number, mask in enumerate(self.kernels) if mask.begins == begins)
        return next(found, None)
