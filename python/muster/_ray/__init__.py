"""The bridge to Ray: the one process of Muster's that imports ray.

The head starts it (backend/ray), asks it for nodes, groups and agents by lines of
JSON over a unix socket, and hears from it when an agent has ended.

- ``bridge`` is the process: it listens to its head, and waits for another when that is gone.
- ``joining`` gets into Ray, or says in seconds why not.
- ``groups`` makes pools: placement groups and their devices.
- ``reasons`` says why one cannot be had, and who has what it would need.
- ``scaling`` finds out whether nodes may be added.
- ``agents`` starts agents on nodes and hears of their ends.
- ``environments`` has Ray set up what a runtime_env names.
- ``remote`` is what runs on those nodes. It travels by value and imports the standard library
  alone: there may be no Muster yet where it goes.
- ``shipping`` takes there what a node lacks.
"""
