"""Pods for Deployments, ReplicaSets, StatefulSets and Jobs on the emulated API server.

A cluster of one's own has kube-controller-manager for this; the local system has not. There are no
roll-outs here: a workload owns its pods directly, and missing ones are made.
"""
