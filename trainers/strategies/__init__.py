"""How the training of one policy is spread over processes: not at all, as replicas, or in shards.

`base.py` says what a strategy is, `replicated.py` and `sharded.py` are the strategies, `choose.py` makes the one that
the settings ask for, `recompute.py` trades arithmetic for memory under any of them.
"""
