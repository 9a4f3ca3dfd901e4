"""Resource quotas of pods: what a pod costs, whether it fits, what is used.

Pure but for the writes into the transaction that a pod is created, ended or deleted in, so used
amounts never drift from the pods.
"""

from __future__ import annotations

from fractions import Fraction

from hamicommon.k8s.quantities import family, parse_exact, render
from hamicommon.k8s.types import Json

from kubelocal.apiserver.calls import ApiTarget
from kubelocal.apiserver.storage.store import Transaction
from kubelocal.apiserver.validation.resources import is_extended

Amounts = dict[str, Fraction]
_ENDED = ("Succeeded", "Failed")
_COMPUTE = ("cpu", "memory")


def has_ended(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") in _ENDED


def charge(transaction: Transaction, target: ApiTarget, pod: Json) -> None:
    """Book a new pod on every quota of its namespace. Raises: ApiError (403) where one is full."""
    for stored in transaction.items("resourcequotas", target.namespace):
        quota = stored.load()
        hard = quota.get("status", {}).get("hard", {})
        if not hard:
            continue
        used = quota["status"].get("used", {})
        cost = {name: amount for name, amount in pod_cost(pod).items() if name in hard}
        if unset := sorted(name for name in hard if _must_be_set(name) and name not in cost):
            why = f"failed quota: {stored.name}: must specify {','.join(unset)}"
            raise target.forbidden(why)
        over = sorted(
            name
            for name, amount in cost.items()
            if amount + parse_exact(used.get(name, "0")) > parse_exact(hard[name])
        )
        if over:
            requested = ",".join(f"{name}={render(cost[name])}" for name in over)
            have = ",".join(f"{name}={used.get(name, '0')}" for name in over)
            limited = ",".join(f"{name}={hard[name]}" for name in over)
            raise target.forbidden(
                f"exceeded quota: {stored.name}, requested: {requested}, used: {have}, "
                f"limited: {limited}"
            )
        total = {name: parse_exact(used.get(name, "0")) for name in hard}
        for name, amount in cost.items():
            total[name] += amount
        _write(transaction, quota, hard, total)


def settle(transaction: Transaction, namespace: str) -> None:
    """Count every quota of the namespace again, after a pod has gone or a quota has changed."""
    quotas = transaction.items("resourcequotas", namespace)
    if not quotas:
        return
    pods = [pod.load() for pod in transaction.items("pods", namespace)]
    for stored in quotas:
        quota = stored.load()
        hard = quota.get("spec", {}).get("hard", {})
        total = dict.fromkeys(hard, Fraction(0))
        for pod in pods:
            if has_ended(pod):
                continue
            for name, amount in pod_cost(pod).items():
                if name in total:
                    total[name] += amount
        _write(transaction, quota, hard, total)


def pod_cost(pod: Json) -> Amounts:
    """Sum up one pod by quota key: what runs at the same time adds up, and the largest sum counts.

    An init container runs beside the sidecars (restartPolicy Always) that are declared before it.
    """
    cost: Amounts = {"pods": Fraction(1), "count/pods": Fraction(1)}
    spec = pod.get("spec", {})
    for kind in ("requests", "limits"):
        running: Amounts = {}
        highest: Amounts = {}
        for container in spec.get("initContainers", []):
            for name, text in container.get("resources", {}).get(kind, {}).items():
                amount = running.get(name, Fraction(0)) + parse_exact(text)
                highest[name] = max(highest.get(name, Fraction(0)), amount)
                if container.get("restartPolicy") == "Always":
                    running[name] = amount
        for container in spec.get("containers", []):
            for name, text in container.get("resources", {}).get(kind, {}).items():
                running[name] = running.get(name, Fraction(0)) + parse_exact(text)
        for name in {**highest, **running}:
            amount = max(highest.get(name, Fraction(0)), running.get(name, Fraction(0)))
            # Of extended resources only requests count (pkg/quota/v1/evaluator/core/pods.go); a
            # quota on their limits is HAMi's, and kube-apiserver lets every pod pass it.
            if kind == "limits" and is_extended(name):
                continue
            cost[f"{kind}.{name}"] = amount
            if kind == "requests" and not is_extended(name):
                cost[name] = amount
    return cost


def _must_be_set(name: str) -> bool:
    return name.rpartition(".")[2] in _COMPUTE and name.count(".") <= 1


def _write(transaction: Transaction, quota: Json, hard: Json, used: Amounts) -> None:
    families = {name: family(hard[name]) for name in hard}
    status = {
        "hard": hard,
        "used": {name: render(used[name], families[name]) for name in hard},
    }
    if status != quota.get("status"):
        transaction.put("resourcequotas", quota | {"status": status})
