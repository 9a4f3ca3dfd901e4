"""Examples of each command, with which its help begins."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "hamictl up",
        "hamictl up --nodes 8 --gpus 8 --detach",
        "hamictl up --kubeconfig ~/.kube/config",
    ),
    "down": ("hamictl down", "HAMI_FOLDER=/tmp/other hamictl down"),
    "apply": (
        "hamictl apply -f examples/01-one-slice.yaml",
        "hamictl apply -f examples/ -n team-a",
        "kubectl create deployment web --image nginx --dry-run=client -o yaml | hamictl apply -f -",
    ),
    "get": (
        "hamictl get devices",
        "hamictl get allocations -n team-a --at 14:05",
        "hamictl get pods -A -o jsonpath='{.items[*].name}'",
    ),
    "describe": (
        "hamictl describe pod train",
        "hamictl describe node node-1 --at 14:05",
        "hamictl describe card GPU-6c1e0d2b-0000-0000-0000-000000000003",
    ),
    "open": ("hamictl open", "hamictl open team-a/train", "hamictl open node node-1"),
    "doctor": ("hamictl doctor", "hamictl doctor -o json", "hamictl doctor --ascii"),
    "top": (
        "hamictl top",
        "hamictl top -1 --sort memory",
        "hamictl top nodes --sort memory",
        "hamictl top pods -n team-a --sort-by USED-MEMORY",
        "hamictl top --filter team-a/ -o json",
    ),
    "who": (
        "hamictl who",
        "hamictl who GPU-6c1e0d2b-0000-0000-0000-000000000003",
        "hamictl who node-1 --at 14:05",
        "hamictl who node-1 --since 2h -o csv",
    ),
    "pending": (
        "hamictl pending",
        "hamictl pending -n team-a --sort-by SINCE",
        "hamictl pending --at 'yesterday 14:05'",
    ),
    "capacity": (
        "hamictl capacity --gpumem 8Gi --cores 30",
        "hamictl capacity --gpumem 40Gi --gpus 8 --replicas 4",
        "hamictl capacity -f pod.yaml -o json",
    ),
    "preempt": (
        "hamictl preempt -f pod.yaml",
        "hamictl preempt train -n team-a",
        "hamictl preempt train -o json",
    ),
    "delete": ("hamictl delete train", "hamictl delete pod/train -n team-a --now"),
    "explain": (
        "hamictl explain train",
        "hamictl explain pod/train -n team-a",
        "hamictl explain train --near-misses",
        "hamictl explain train -o json",
    ),
    "history": (
        "hamictl history train",
        "hamictl history train -n team-a -o json",
        "hamictl history node/node-1 --since 2h",
        "hamictl history card node-1/0",
    ),
    "trace": (
        "hamictl trace train",
        "hamictl trace team-a/train -o json",
        "hamictl trace train --spans exported/",
    ),
    "usage": (
        "hamictl usage",
        "hamictl usage pod team-a/train --since 1h",
        "hamictl usage node node-1 --at 'yesterday 14:05' -o csv",
        "hamictl usage --idle",
    ),
    "showback": (
        "hamictl showback",
        "hamictl showback --month 2026-10 --basis cores -o csv",
        "hamictl showback --since 7d --by-type",
        "hamictl showback --price 2.50",
    ),
    "sql": (
        "hamictl sql",
        "hamictl sql what-fits memory=8Gi cores=30%",
        "hamictl sql \"select * from allocations_at(now() - interval '1 hour')\" -o csv",
    ),
    "drift": ("hamictl drift", "hamictl drift --class pod-without-grant", "hamictl drift -o json"),
    "dead-letters": ("hamictl dead-letters", "hamictl dead-letters --retry 7"),
    "simulate": (
        "kubectl get nodes,pods -A -o json | hamictl simulate --cluster - -f pod.yaml",
        "hamictl simulate --cluster dump.json -f deployment.yaml --gpu-policy binpack",
    ),
    "scale": (
        "kubectl get nodes,pods -A -o json | hamictl scale plan --cluster -",
        "hamictl scale plan --cluster dump.json -f deployment.yaml",
        "hamictl scale plan --cluster dump.json --types types.yaml -o json",
    ),
    "kueue": (
        "kubectl get nodes -o json | hamictl kueue setup --cluster - | kubectl apply -f -",
        "hamictl kueue setup --cluster dump.json --queue gpu -n team-a",
        "hamictl kueue setup --cluster dump.json --policy",
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
    "config": (
        "hamictl config",
        "hamictl config --example > ~/.config/hamictl.toml",
        "HAMICTL_CONFIG=~/production.toml hamictl config",
    ),
    "help": ("hamictl help exit-codes", "hamictl help times", "hamictl help output"),
    "version": ("hamictl version", "hamictl version -o json"),
}
