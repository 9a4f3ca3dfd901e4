"""A list of pods against a cluster under a policy, by the engine itself. Pure.

`trace` has what is replayed, `openb` reads Alibaba's form of it, `arrivals` orders and inflates it,
`placers` asks the engine, `references` what others have published, `course` and `churn` run it.
"""
