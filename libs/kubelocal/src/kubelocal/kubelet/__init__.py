"""Simulated kubelet: one node with device plugins, and containers as local processes.

Start with `python -m kubelocal.kubelet --node NAME --kubeconfig FILE --root DIR`. A pod's way here:
`kubelet` (watch) -> `admission` (serial; `devices`) -> `pod_worker` -> `containers` (the launcher),
and back as `pod_status`. `node` reports the Node, `sockets` serves node-agents.

Towards device plugins and the API server it behaves as kubelet 1.20 does. It differs here:

* Images are not run. The command runs on this machine; a container without one sleeps.
* Containers share the host's network; the pod's address is 127.0.0.1. Their process ids are their
  own, but process 1 is the launcher's, which passes SIGTERM on: it therefore ends a shell, which as
  process 1 of a real container would ignore it.
* Probes, lifecycle hooks, users, security contexts, CPU and memory limits have no effect; of the
  volumes emptyDir and hostPath are made, of the variables values and fieldRef.
* The checkpoint's checksum is a CRC (the real one hashes a Go value's text form), Allocate and
  GetPreferredAllocation have a time-out, and no topology manager aligns device ids.
* Without mount namespaces (annotation `hamictl.io/mounts: pathmap` of the Node) mounts exist only
  for programs that the preloaded libpathmap.so reaches.
"""
