"use strict";
// One stream for all tabs of a browser: it allows six connections to a host, and each tab was one.
// A tab names which stream it wants and from which version; who joins late gets what it missed, or
// loads its page again.
const KEPT = 20;
const streams = new Map();
// An event's id is PROCESS-VERSION: another process of the service counts from 1, too.
const number = (id) => Number(String(id).split("-").pop());
const epoch = (id) => String(id).split("-")[0];
const KINDS = ["hello", "cells", "changed", "resync", "stale"];

const open = (grid, since) => {
  const one = { source: new EventSource(`/live?grid=${grid}&since=${encodeURIComponent(since)}`), ports: new Set(), version: since, log: [] };
  const send = (message) => { for (const port of one.ports) port.postMessage(message); };
  for (const kind of KINDS) one.source.addEventListener(kind, (event) => {
    one.last = { kind, id: event.lastEventId, data: event.data, from: number(one.version) };
    if (event.lastEventId) {
      one.version = event.lastEventId;
      one.log = kind === "resync" ? [] : [...one.log.slice(1 - KEPT), one.last];
    }
    send(one.last);
  });
  one.source.onerror = () => {
    send({ kind: "away" });
    // A status that is none of a stream closes it for good: it is opened again in a while.
    if (one.source.readyState === EventSource.CLOSED) { streams.delete(grid); setTimeout(() => { for (const port of one.ports) join(port, grid, one.version); }, 3000); }
  };
  streams.set(grid, one);
  return one;
};
const join = (port, grid, since) => {
  const known = streams.get(grid), one = known || open(grid, since);
  one.ports.add(port);
  if (!known) return;
  const same = epoch(since) === epoch(known.version);
  const all = same && known.log.length && known.log[0].from <= number(since);
  if (all) known.log.filter((one) => number(one.id) > number(since)).forEach((one) => port.postMessage(one));
  else if (!same || number(since) < number(known.version)) port.postMessage({ kind: "resync", id: known.version, data: "{}" });
  if (known.last && known.last.kind === "stale") port.postMessage(known.last);
};
const leave = (port) => {
  for (const [grid, one] of streams) {
    one.ports.delete(port);
    if (!one.ports.size) { one.source.close(); streams.delete(grid); }
  }
};
onconnect = (event) => {
  const [port] = event.ports;
  port.onmessage = ({ data }) => { if (data.join) join(port, data.grid, data.since); else leave(port); };
};
