"""Random work under random faults, held against the rules; `make chaos` runs it.

A round is derived from its seed alone, and what it did is written down:

- `plan`: pure. A seed becomes a shape, teams (clusters), lanes of calls, faults.
- `workers`: the classes of the teams. Each leg writes down its begin and its end.
- `play`: the script of one round. It makes the calls and writes down the answers.
- `faults`: finds the processes of a round; kills, stops and continues them.
- `rules`: pure. What was written down is held against what Muster promises.
- `watch`: runs a round as a process of its own, sees what it leaves, and reports.

It uses Muster as a script does, and looks at processes from the outside. Timing
may differ from run to run of one seed; what is asked and done does not.
"""
