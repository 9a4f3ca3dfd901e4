"use strict";
// One stream for all tabs of a browser: it allows six connections to a host, and each tab was one.
// A tab names the version of its page; one that joins late and is behind loads its page again.
const KINDS = ["hello", "changed", "resync", "stale"];
const ports = new Set();
let source = null, version = 0, stale = null;

const send = (message) => { for (const port of ports) port.postMessage(message); };
const open = () => {
  source = new EventSource(`/live?since=${version}`);
  for (const kind of KINDS) source.addEventListener(kind, (event) => {
    const message = { kind, id: event.lastEventId, data: event.data };
    if (event.lastEventId) version = Number(event.lastEventId);
    stale = kind === "stale" ? message : null;
    send(message);
  });
  source.onerror = () => {
    send({ kind: "away" });
    // A status that is none of a stream closes it for good: it is opened again in a while.
    if (source?.readyState === EventSource.CLOSED) { source = null; setTimeout(() => { if (ports.size && !source) open(); }, 3000); }
  };
};
const join = (port, since) => {
  ports.add(port);
  if (!source) { version = since; open(); return; }
  if (since < version) port.postMessage({ kind: "resync", id: String(version), data: "{}" });
  if (stale) port.postMessage(stale);
};
const leave = (port) => {
  ports.delete(port);
  if (!ports.size) { source?.close(); source = null; }
};
onconnect = (event) => {
  const [port] = event.ports;
  port.onmessage = ({ data }) => { if (data.join) join(port, Number(data.since)); else leave(port); };
};
