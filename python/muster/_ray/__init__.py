"""The bridge to Ray: the one process of Muster's that imports ray.

The head starts it (backend/ray), asks it for nodes, groups and agents by lines of
JSON over a unix socket, and hears from it when an agent has ended.

- ``bridge`` is the process: it listens to its head, and waits for another when that is gone.
- ``joining`` gets into Ray, or says in seconds why not.
- ``groups`` makes pools: placement groups, their devices, and why one cannot be had.
- ``agents`` starts agents on nodes and hears of their ends.
- ``remote`` is what runs on those nodes. It travels by value and imports the standard library
  alone: there may be no Muster yet where it goes.
- ``shipping`` takes there what a node lacks.
"""
