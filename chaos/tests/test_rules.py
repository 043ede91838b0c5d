"""Each rule notices what breaks it, and lets pass what may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaos import rules
from chaos.plan import Fault, Lane, Plan, Step, Team

Line = dict[str, Any]

STEPS = (
    Step("a", "t", "note"),
    Step("b", "t", "note", how="split"),
    Step("c", "t", "linger", how="ref", timeout=1.0),
    Step("d", "t", "linger", how="ref", cancel=0.1),
    Step("e", "t", "fail", rank=1),
    Step("f", "r", "note_again"),
    Step("g", "r", "note"),
    Step("h", "t", "rows", how="ref", size=4),
    Step("i", "t", "rows", source="h", future=True),
    Step("j", "t", "relay", inner="r"),
    Step("k", "r", "leave", rank=0, way="os._exit"),
    Step("l", "t", "spell", size=1),
    Step("m", "r", "rows", source="h", future=True),
)
PLAN = Plan(
    seed=0,
    shape="2x2",
    nodes=2,
    gpus=2,
    teams=(Team("t", "sync", (0, 2)), Team("r", "sync", (1, 3), on_failure="restart_worker")),
    lanes=(Lane("lane0", "thread", STEPS),),
    faults=(Fault(1, 0.0, "kill", "worker", team="t", rank=1),),
    steps={step.call: step for step in STEPS},
)
PLACES = {"t/0": "node-0", "t/1": "node-1", "r/0": "node-0", "r/1": "node-1"}


class Story:
    """What a round wrote, told event by event; each is later than the one before."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[Line] = []
        self.legs: list[Line] = []
        self.runs = 0
        self.pids = {name: 100 + i for i, name in enumerate(PLACES)}
        self.say("started", places=PLACES)

    def say(self, what: str, **more: Any) -> None:
        self.now += 1
        self.log.append({"at": self.now, "what": what, **more})

    def leg(self, what: str, who: str, call: str, run: int, **more: Any) -> None:
        self.now += 1
        team, rank = who.split("/")
        line = {"at": self.now, "what": what, "team": team, "rank": int(rank), "call": call}
        self.legs.append({**line, "run": run, "pid": self.pids[who], "mark": "x", **more})

    def begin(self, who: str, call: str, **more: Any) -> int:
        self.runs += 1
        self.leg("begin", who, call, self.runs, **more)
        return self.runs

    def run(self, who: str, call: str) -> int:
        run = self.begin(who, call)
        self.leg("end", who, call, run, raised="")
        return run

    def call(self, call: str) -> None:
        self.say("sent", call=call, lane="lane0", plan="")

    def answer(self, call: str, *runs: int, part: int = -1, right: bool = True) -> None:
        more = {"right": right, "why": "not right", "runs": list(runs), "error": None}
        self.say("answer", call=call, part=part, **more)

    def fails(self, call: str, code: str, part: int = -1, text: str = "", **more: Any) -> None:
        about = {"cluster": "", "rank": -1, "node": "", "signal": "", "exit_code": 0}
        error = {**about, "code": code, "kind": code, "text": text, **more}
        self.say("answer", call=call, part=part, error=error)

    def kill(self, role: str = "worker", who: str = "t/1", node: int = -1) -> None:
        team, rank = who.split("/")
        more = {"act": "kill", "role": role, "team": team, "rank": int(rank), "node": node}
        self.say("fault", plan="", pid=self.pids[who], hit=True, **more)

    def works(self, call: str, *who: str) -> None:
        """A call that does what it should."""
        self.call(call)
        self.answer(call, *[self.run(one, call) for one in who])

    def judged(self) -> list[str]:
        self.say("stored", objects=[])
        self.say("ports", held={"node-0": 0})
        self.say("ended")
        return [broken.rule for broken in rules.judge(PLAN, self.log, self.legs)]


DEATH: Line = {"cluster": "t", "rank": 1, "node": "node-1", "signal": "SIGKILL"}


def twice(s: Story) -> None:
    s.works("a", "t/0", "t/1", "t/1")


def twice_in_another_process(s: Story) -> None:
    s.call("g")
    run = s.run("r/0", "g")
    s.pids["r/0"] = 200
    s.answer("g", run, s.run("r/0", "g"))


def twice_in_one_process(s: Story) -> None:
    s.works("f", "r/0", "r/0")


def lane_out_of_order(s: Story) -> None:
    s.works("f", "r/0")
    s.works("g", "r/0")
    s.run("t/0", "b")
    s.run("t/0", "a")


def ranks_differ(s: Story) -> None:
    for who, calls in {"t/0": ("x.0", "x.1"), "t/1": ("x.1", "x.0")}.items():
        for call in calls:
            s.run(who, call)


def overlap(s: Story) -> None:
    s.begin("t/0", "a")
    s.begin("t/0", "c")


def never_answered(s: Story) -> None:
    s.call("a")
    s.run("t/0", "a")


def answered_twice(s: Story) -> None:
    s.works("a", "t/0", "t/1")
    s.answer("a")


def part_missing(s: Story) -> None:
    s.call("b")
    s.answer("b", s.run("t/0", "b"), part=0)


def changed(s: Story) -> None:
    s.works("a", "t/0")
    s.say("changed", call="a", first="x", again="y")


def wrong_value(s: Story) -> None:
    s.call("a")
    s.answer("a", right=False)


def answer_of_a_dead_rank(s: Story) -> None:
    s.call("a")
    run = s.begin("t/1", "a")
    s.kill()
    s.answer("a", s.run("t/0", "a"), run)


def answer_of_another_call(s: Story) -> None:
    s.works("a", "t/0")
    s.call("h")
    s.answer("h", 1)


def exception_of_nobody(s: Story) -> None:
    s.call("a")
    s.fails("a", "user", text="KeyError")


def cancelled_by_nobody(s: Story) -> None:
    s.call("d")
    s.fails("d", "cancelled")


def deadline_of_nobody(s: Story) -> None:
    s.call("a")
    s.fails("a", "timeout")


def tainted_by_nobody(s: Story) -> None:
    s.call("a")
    s.fails("a", "tainted", cluster="t", rank=0)


def tainted_by_a_restart(s: Story) -> None:
    s.kill(who="r/1")
    s.call("g")
    s.fails("g", "tainted", cluster="r", rank=0)


def death_of_nobody(s: Story) -> None:
    s.call("a")
    s.fails("a", "worker_died", **DEATH)
    s.kill()


def death_of_another_rank(s: Story) -> None:
    s.kill()
    s.call("a")
    s.fails("a", "worker_died", **{**DEATH, "rank": 0, "node": "node-0"})


def death_on_another_node(s: Story) -> None:
    s.kill()
    s.call("a")
    s.fails("a", "worker_died", **{**DEATH, "node": "node-0"})


def death_of_another_kind(s: Story) -> None:
    s.kill()
    s.call("a")
    s.fails("a", "worker_died", **{**DEATH, "signal": "", "exit_code": 17})


def death_of_another_process(s: Story) -> None:
    s.kill()
    s.call("a")
    s.fails("a", "worker_died", text="died: process 4711", **DEATH)


def death_elsewhere(s: Story) -> None:
    s.kill()
    s.call("g")
    s.fails("g", "worker_died", **DEATH)


def death_of_what_may_run_again(s: Story) -> None:
    s.kill(who="r/1")
    s.call("f")
    s.fails("f", "worker_died", **{**DEATH, "cluster": "r"})


def node_that_is_there(s: Story) -> None:
    s.kill("agent", node=1)
    s.call("a")
    s.fails("a", "node_lost", node="node-0")


def strange_error(s: Story) -> None:
    s.kill()
    s.call("a")
    s.fails("a", "head_lost")


def deadlock_of_nobody(s: Story) -> None:
    s.call("a")
    s.fails("a", "deadlock")


def zygote_that_lives(s: Story) -> None:
    s.call("l")
    s.fails("l", "startup", text="the zygote (pid 7, python) ended")


def not_initialized(s: Story) -> None:
    s.begin("r/0", "a", mark="")


def left_in_the_store(s: Story) -> None:
    s.say("stored", objects=[{"object": "1"}])


def port_held(s: Story) -> None:
    s.say("ports", held={"node-1": 1})


def hang(s: Story) -> None:
    s.say("hang", lanes=["lane0"])


def script_failed(s: Story) -> None:
    s.say("trouble", error={"text": "Traceback"})


BREAKS: dict[Callable[[Story], None], str] = {
    twice: "once",
    twice_in_another_process: "once",
    twice_in_one_process: "once",
    lane_out_of_order: "order",
    ranks_differ: "order",
    overlap: "order",
    never_answered: "answered",
    answered_twice: "answered",
    part_missing: "answered",
    changed: "answered",
    wrong_value: "values",
    answer_of_a_dead_rank: "values",
    answer_of_another_call: "values",
    exception_of_nobody: "errors",
    cancelled_by_nobody: "errors",
    deadline_of_nobody: "errors",
    tainted_by_nobody: "errors",
    tainted_by_a_restart: "errors",
    death_of_nobody: "errors",
    death_of_another_rank: "errors",
    death_on_another_node: "errors",
    death_of_another_kind: "errors",
    death_of_another_process: "errors",
    death_elsewhere: "errors",
    death_of_what_may_run_again: "errors",
    node_that_is_there: "errors",
    strange_error: "errors",
    deadlock_of_nobody: "errors",
    zygote_that_lives: "errors",
    script_failed: "errors",
    not_initialized: "begun",
    left_in_the_store: "end",
    port_held: "end",
    hang: "end",
}


@pytest.mark.parametrize("tell", BREAKS, ids=lambda tell: tell.__name__)
def test_it_is_noticed(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    assert set(story.judged()) == {BREAKS[tell]}


def test_a_round_that_broke_off_is_noticed() -> None:
    story = Story()
    story.works("a", "t/0", "t/1")
    assert [b.rule for b in rules.judge(PLAN, story.log, story.legs)] == ["end"]


def test_what_may_be_is_let_pass() -> None:
    s = Story()
    s.works("a", "t/0", "t/1")
    s.call("b")
    for rank in (0, 1):
        s.answer("b", s.run(f"t/{rank}", "b"), part=rank)
    s.call("c")
    s.fails("c", "timeout")
    s.call("d")
    s.say("cancel", call="d")
    s.fails("d", "cancelled")
    s.call("e")
    s.fails("e", "user", text="planned e")
    s.call("f")  # run again in another process
    first = s.begin("r/1", "f")
    s.kill(who="r/1")
    s.pids["r/1"] = 300
    s.answer("f", s.run("r/0", "f"), s.run("r/1", "f"))
    assert first
    s.kill(who="t/1")
    s.call("h")
    s.fails("h", "worker_died", text="died: killed, process 101", **DEATH)
    s.call("i")  # its argument died
    s.fails("i", "worker_died", **DEATH)
    s.call("j")  # what it called did
    s.fails("j", "worker_died", **{**DEATH, "cluster": "r"}, text="process 103")
    s.call("k")
    s.leg("leaves", "r/0", "k", s.begin("r/0", "k"), code=17)
    s.fails("k", "worker_died", cluster="r", rank=0, node="node-0", exit_code=17)
    s.kill("zygote", node=0)
    s.call("l")
    s.fails("l", "startup", text="the zygote (pid 101, python) ended while it was forking")
    s.call("m")
    s.kill("warden", node=0)
    s.fails("m", "node_lost", node="", text="the store of node 0 is lost")
    assert s.judged() == []


def test_a_broken_rule_shows_its_lines() -> None:
    s = Story()
    s.works("a", "t/0", "t/1", "t/1")
    s.judged()
    told = str(rules.judge(PLAN, s.log, s.legs)[0])
    assert "t/1 ran call a 2 times" in told
    assert told.count("begin a") == 3 and "sent" in told and "answer" in told


def test_a_wait_that_would_close_a_cycle_may_be_told() -> None:
    s = Story()
    s.call("j")  # it calls r, where m may wait for h, which comes after j
    s.fails("j", "deadlock")
    assert s.judged() == []


def test_who_is_left_of_a_call_when_a_node_is_lost_may_be_tainted() -> None:
    s = Story()
    s.kill("agent", node=1)
    s.call("g")
    s.fails("g", "tainted", cluster="r", rank=0)
    assert s.judged() == []
