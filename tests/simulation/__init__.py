"""The whole system on a fake clock: seeded histories with faults, and a model of what must be true.

`scripts.py` draws a history from a seed: pods of many sizes arrive, end, restart and are deleted;
wires lose, double, delay and refuse; replicas and agents are killed or stopped, locks are lost,
clocks jump, cards fall sick, nodes vanish. `happenings.py` carries it out on `world.py`, where the
real services run: `hami_scheduler.bootstrap` in `replica.py`, the use cases of the node-agent in
`agent.py`. Around them are their neighbours: `ledger.py` (Postgres, held to it by the contract
suite) with `inventories.py` and `outbox.py`, `redis_server.py`, `bus.py`, `api_server.py`,
`kube_scheduler.py` and `kubelet.py`; between them `processes.py` (what may die or stop, and the
wires) and `fake_time.py` (no thread, no clock, no chance but the seed's).

After each step `model.py` checks SAFE-1..6; after the last fault, LIVE-1 and LIVE-2. A failure
names its seed and the shortest script that `runner.py` finds to fail the same way.
`test_mutations.py` takes guards out of the code and sees each missed.
"""
