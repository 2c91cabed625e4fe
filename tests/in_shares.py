"""Answers of a run in shares, one after the other in this process: what a cluster does, without one."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from rlscope.cluster import PartitionHolder, versions
from rlscope.errors import RlscopeError
from rlscope.trace.questions import Question
from rlscope.trace.shares import Argument, Partition, PartitionedRun, plan_shares
from rlscope.trace.store import Partitioner, StoredRun


class InOneProcess(PartitionedRun):
    def __init__(self, holder: PartitionHolder, shares: Sequence[Partition]) -> None:
        self._holder = holder
        self._shares = shares

    def answers(self, question: Question, arguments: Mapping[str, Argument]) -> Iterator[pa.Table]:
        for share in self._shares:
            if share.partition == question.partition:
                answer = self._holder.answer(share, question.name, arguments)
                if isinstance(answer, RlscopeError):
                    raise answer
                yield answer


@dataclass(frozen=True)
class in_one_process(Partitioner):
    by_worker: int
    by_sample: int

    @contextmanager
    def __call__(self, stored: StoredRun) -> Generator[PartitionedRun]:
        holder = PartitionHolder(stored, versions())
        try:
            yield InOneProcess(holder, plan_shares(stored.workers, stored.tables, self.by_worker, self.by_sample))
        finally:
            holder.close()
