"""JAX takes all that its allocator gets, in blocks of one GiB."""

# mypy: ignore-errors

import json

import jax
import jax.numpy as jnp

MAX_BLOCKS = 200

total = float(jax.jit(lambda a: (a @ a).sum())(jnp.ones((2048, 2048))))
held, caught = [], None
try:
    while len(held) < MAX_BLOCKS:
        held.append(jnp.ones((1 << 28,), jnp.float32).block_until_ready())
except jax.errors.JaxRuntimeError as error:
    caught = str(error)
limit = jax.devices()[0].memory_stats()["bytes_limit"]
print(json.dumps({"sum": total, "limit": limit, "caught": caught}))
