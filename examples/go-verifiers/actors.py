"""The actor that both pipelines of this example train: a policy of one number."""

from __future__ import annotations

from muster import Dispatch, Worker, register


class Actor(Worker):
    """Answers arithmetic questions, the more carefully the better it was rewarded."""

    care = 0

    @register(Dispatch.DP_MP_COMPUTE)
    def generate(self, questions: list[str]) -> list[str]:
        """Answer; a question that is still too hard gets no number, or a wrong one."""
        answers = []
        for question in questions:
            product, _, rest = question.partition("+")
            left, _, right = product.partition("*")
            exact = int(left) * int(right) + int(rest)
            hard = exact // 4 % 4
            answers.append(
                str(exact) if hard <= self.care else "?" if hard == 3 else str(exact + 1)
            )
        return answers

    @register(Dispatch.DP_MP_COMPUTE)
    def update(self, rewards: list[float]) -> None:
        """Learn from a step's rewards."""
        self.care += min(rewards, default=1.0) < 1
