"""Cutting a card anew: look for leases, put it aside, have the task run, wait, give it back.

The card is put aside in the ledger, as disputed, before anything on the node is touched: between
the look and the task nobody can be given it. It comes back once its agent reports it cut as it was
to be. Where the task failed, or nobody knows whether it did, or the placer went away meanwhile, it
stays aside with the reason, until an operator has looked and clears that.
"""

from __future__ import annotations

import asyncio
from typing import Final

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import TaskDone
from quintal.errors import Code, Owner
from quintal_placer.agents import Agents
from quintal_placer.cutting import Plan, planned
from quintal_placer.desk import Desk
from quintal_placer.tasks import report

ANSWER_S: Final = 3.0
"""What is over by then is told in the answer; what is not runs on."""

REPORT_S: Final = 120.0
"""How long the agent may take to report what its node has become."""

LOOK_S: Final = 0.25


class Recutting:
    """The cards that are being cut. Made when this placer takes the lead."""

    def __init__(self, desk: Desk, hands: Agents, report_s: float = REPORT_S) -> None:
        self._report_s = report_s
        self._desk = desk
        self._agents = hands
        self._tasks: set[asyncio.Task[placement.Done | Refusal]] = set()

    async def partition(self, ask: placement.PartitionAsk) -> placement.Done | Refusal:
        """The plan; or, where it is to be done, what came of it, if that is soon known."""
        plan = planned(self._desk.state, ask)
        if isinstance(plan, Refusal) or not ask.run:
            return plan if isinstance(plan, Refusal) else plan.told
        aside = self._aside(plan, f"partitioning: {plan.layout}")  # no await since the look
        task = asyncio.create_task(self._cut(plan, ask.timeout_ms, aside))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(report)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_S)
        if done:
            return task.result()
        told = f"task {plan.task} runs; {plan.device.uuid} comes back when its agent reports it"
        return plan.told.model_copy(update={"message": told})

    async def _cut(
        self, plan: Plan, timeout_ms: int, aside: asyncio.Future[int]
    ) -> placement.Done | Refusal:
        await asyncio.shield(aside)
        node = plan.device.node
        answer = await self._agents.task(node, plan.task, timeout_ms)
        if isinstance(answer, Refusal):  # nothing was touched
            await asyncio.shield(self._back(plan, answer.message))
            return answer
        failed = _failure(answer)
        if failed:
            reason = f"partitioning as {plan.layout} failed: {failed}"
            await asyncio.shield(self._aside(plan, reason[:200]))
            return Refusal(code=Code.ADAPTER_ERROR, message=reason, owner=Owner.INFRASTRUCTURE)
        return await self._reported(plan)

    async def _reported(self, plan: Plan) -> placement.Done | Refusal:
        """Wait for the agent: what the task said of itself is no fact of the inventory."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._report_s
        while loop.time() < give_up_s:
            node = self._desk.state.fleet.nodes.get(plan.device.node)
            device = node.devices.get(plan.device.uuid) if node else None
            if device is not None and plan.holds(device):
                sequence = await asyncio.shield(self._back(plan, f"cut as {plan.layout}"))
                told = f"{plan.device.node}/{plan.device.uuid} is cut as {plan.layout}"
                return plan.told.model_copy(update={"message": told, "sequence": sequence})
            await asyncio.sleep(LOOK_S)
        reason = f"partitioned as {plan.layout}, and its agent does not report that"
        await asyncio.shield(self._aside(plan, reason))
        return Refusal(code=Code.ADAPTER_ERROR, message=reason, owner=Owner.INFRASTRUCTURE)

    def _aside(self, plan: Plan, reason: str) -> asyncio.Future[int]:
        return self._dispute(plan, reason, disputed=True)

    def _back(self, plan: Plan, reason: str) -> asyncio.Future[int]:
        return self._dispute(plan, reason, disputed=False)

    def _dispute(self, plan: Plan, reason: str, *, disputed: bool) -> asyncio.Future[int]:
        record = ledger.DisputeChanged(
            at_ms=self._desk.writer.now_ms(),
            node=plan.device.node,
            uuid=plan.device.uuid,
            disputed=disputed,
            reason=reason[:200],
        )
        return self._desk.commit([record])

    async def close(self) -> None:
        """Stop waiting; the cards stay aside."""
        for task in self._tasks:
            task.cancel()


def _failure(answer: TaskDone | None) -> str:
    if answer is None:
        return "nobody knows whether the task ran"
    if answer.exit_status is None:
        return "the task was ended at its deadline"
    return f"exit status {answer.exit_status}: {answer.output[-120:]}" if answer.exit_status else ""
