"""Three examples of each verb: its help begins with them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "hamictl up",
        "hamictl up --nodes 8 --gpus 8 --detach",
        "hamictl up --kubeconfig ~/.kube/config",
    ),
    "down": ("hamictl down", "HAMI_FOLDER=/tmp/other hamictl down"),
    "apply": (
        "hamictl apply -f examples/01-small-slice.yaml",
        "hamictl apply -f examples/ -n team-a",
        "kubectl create deployment web --image nginx --dry-run=client -o yaml | hamictl apply -f -",
    ),
    "get": (
        "hamictl get devices",
        "hamictl get allocations -n team-a --sort-by SINCE",
        "hamictl get pods -A -o jsonpath='{.items[*].name}'",
    ),
    "delete": ("hamictl delete train", "hamictl delete pod/train -n team-a --now"),
    "explain": (
        "hamictl explain train",
        "hamictl explain pod/train -n team-a",
        "hamictl explain train -o json",
    ),
    "history": ("hamictl history train", "hamictl history train -n team-a -o json"),
    "sql": (
        "hamictl sql 'select * from v_free_by_device'",
        "hamictl sql \"select * from allocations_at(now() - interval '1 hour')\" -o csv",
        "hamictl sql 'select count(*) from decisions' -o json",
    ),
    "drift": ("hamictl drift", "hamictl drift --class ungranted_pod", "hamictl drift -o json"),
    "dead-letters": ("hamictl dead-letters", "hamictl dead-letters --send-again 7"),
    "simulate": (
        "kubectl get nodes,pods -A -o json | hamictl simulate --cluster - -f pod.yaml",
        "hamictl simulate --cluster dump.json -f deployment.yaml --gpu-policy binpack",
    ),
    "replay": (
        "hamictl replay --from ledger --since 30d --policy binpack,fragmentation",
        "hamictl replay --nodes nodes.csv --pods pods.csv --seeds 42-51 --picture curve.svg",
        "hamictl replay --nodes nodes.csv --pods pods.csv --mean-load 70,85,95",
    ),
    "dump": ("hamictl dump --since 30d > history.jsonl", "hamictl dump --since 12h | gzip > h.gz"),
    "lint": (
        "hamictl lint -f pod.yaml",
        "hamictl lint -f deployment.yaml --cluster dump.json",
        "hamictl lint -f pod.yaml --live",
    ),
    "vendors": ("hamictl vendors", "hamictl vendors --device-config device-config.yaml"),
    "adopt": ("hamictl adopt", "hamictl adopt --apply", "hamictl adopt --node n1 --apply"),
    "db": ("hamictl db check", "hamictl db upgrade", "hamictl db upgrade --before-rollout"),
    "completion": (
        "source <(hamictl completion bash)",
        "hamictl completion zsh > ~/.zfunc/_hamictl",
        "hamictl completion fish > ~/.config/fish/completions/hamictl.fish",
    ),
    "help": ("hamictl help exit-codes", "hamictl help times", "hamictl help output"),
    "version": ("hamictl version", "hamictl version -o json"),
}
