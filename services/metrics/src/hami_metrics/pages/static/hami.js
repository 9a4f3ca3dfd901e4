"use strict";
// The stream of changes, ages that grow, the theme. Without it every page is right as it was sent.
(() => {
  const body = document.body, byId = (id) => document.getElementById(id);
  let takenAt = parseFloat(body.dataset.taken), version = body.dataset.version;
  let source = null, reloading = false, skew = takenAt ? Date.now() / 1000 - takenAt : 0;
  // Ages count from the server's clock: skew is what the two differ by, and the page's own age.
  const span = (s) => s < 60 ? `${Math.max(0, Math.floor(s))} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min` : `${Math.floor(s / 86400)} d`;
  const setText = (id, text) => { const it = byId(id); if (it && it.textContent !== text) it.textContent = text; };
  const thousands = (n) => n === null || n === undefined ? "?" : String(n).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");

  let shown = null;
  const trouble = (texts) => {
    if (shown === texts.join("\n")) return;
    shown = texts.join("\n");
    byId("trouble").replaceChildren(...texts.map((text) => {
      const line = document.createElement("p");
      line.className = "stale"; line.textContent = "▲ " + text;
      return line;
    }));
  };
  const took = (data) => {
    takenAt = data.taken_at; skew = Date.now() / 1000 - takenAt;
    trouble(data.notices); setText("live", "live ●");
    for (const name of ["held", "waiting", "sick"]) if (name in data) setText(name, thousands(data[name]));
    if ("sick" in data) byId("sick")?.parentElement.classList.toggle("sick", data.sick > 0);
    if ("waiting" in data) byId("waiting")?.parentElement.classList.toggle("warn", data.waiting > 0);
  };
  // The line above a group counts its cells. A group that was folded because nothing was wrong in it opens.
  const SUMS = { held: ".c.h", free: ".c.free", sick: ".c.sick, .c.unkn" };
  const recount = (group) => {
    for (const it of group.querySelectorAll("summary [data-sum]")) {
      const sum = String(group.querySelectorAll(SUMS[it.dataset.sum]).length);
      if (it.textContent === sum) continue;
      if (it.dataset.sum === "sick" && it.textContent === "0") group.open = true;
      it.textContent = sum;
    }
  };
  // Puts in lines of nodes as the server wrote them. False: the page has to be made again, since a
  // node came, went, or has another rack than on this page.
  const patch = (nodes) => {
    const grid = byId("grid"), touched = new Set(), made = document.createElement("template");
    for (const [name, html] of Object.entries(nodes)) {
      const line = byId("n." + name);
      if (!line) { if (html && location.search) continue; return false; }
      if (!html) return false;
      made.innerHTML = html;
      const next = made.content.firstElementChild;
      if (grid.dataset.grouping === "label" && next.dataset.group !== line.dataset.group) return false;
      touched.add(line.closest("details"));
      // A cell that stays keeps its place, and so the focus and what points at it.
      if (next.children.length !== line.children.length) line.replaceChildren(...next.children);
      else [...next.children].forEach((cell, n) => {
        const it = line.children[n], label = cell.getAttribute("aria-label");
        if (it.className !== cell.className) it.className = cell.className;
        if (it.textContent !== cell.textContent) it.textContent = cell.textContent;
        if (label && label !== it.getAttribute("aria-label")) it.setAttribute("aria-label", label);
      });
    }
    touched.forEach(recount);
    document.dispatchEvent(new Event("hami:patched"));
    return true;
  };
  const busy = () => ["INPUT", "SELECT"].includes(document.activeElement?.tagName) || document.querySelector("dialog[open]");
  let wanted = false;
  const reload = () => {
    // What can't be loaded now (somebody types, a load goes on) is loaded a little later.
    wanted = reloading || busy();
    if (wanted) return;
    reloading = true;
    const active = document.activeElement, focused = active?.id, top = scrollY;
    const row = active?.closest?.("#rows") ? active.getAttribute("href") : "";
    const line = active?.classList.contains("c") ? active.parentElement.id : "", place = line ? [...active.parentElement.children].indexOf(active) : 0;
    // Groups come and go: each is known by its name, other tables by their place.
    const known = (one, n) => one.closest("#grid") ? one.querySelector("summary").firstChild.textContent.trim() : n;
    const open = new Map([...document.querySelectorAll("main details")].map((one, n) => [known(one, n), one.open]));
    htmx.ajax("GET", location.pathname + location.search, { target: "#main", select: "#main", swap: "outerHTML" }).finally(() => {
      document.querySelectorAll("main details").forEach((one, n) => { one.open = open.get(known(one, n)) ?? one.open; });
      (row ? [...document.querySelectorAll("#rows a")].find((it) => it.getAttribute("href") === row) : line ? byId(line)?.children[place] : focused ? byId(focused) : null)?.focus({ preventScroll: true });
      scrollTo(0, top);
      setTimeout(() => { reloading = false; }, 2000);
    });
  };
  const fixed = ["history", "showback"].includes(body.dataset.page);
  const concerns = (nodes) => !fixed && (body.dataset.subject ? nodes.includes(body.dataset.subject) : nodes.length || body.dataset.page === "pending");
  const acts = {
    changed: (data) => {
      const began = performance.now();
      took(data);
      if (byId("grid") && body.dataset.page === "overview" ? !patch(data.nodes) : concerns(Object.keys(data.nodes))) reload();
      window.hamiUpdateMs = performance.now() - began; window.hamiUpdates = (window.hamiUpdates || 0) + 1;
    },
    resync: () => { if (!fixed) reload(); },
    stale: (data) => { trouble(data.notices); setText("live", "stale ▲"); },
    away: () => setText("live", "reconnecting"),
  };
  const heard = ({ kind, id, data }) => { if (id) version = id; acts[kind]?.(data ? JSON.parse(data) : null); };
  // By a worker that all tabs share, where the browser has one; its name keeps viewers apart.
  const shared = () => {
    const worker = new SharedWorker("/static/stream.js", { name: body.dataset.viewer });
    worker.port.onmessage = (event) => heard(event.data);
    return { join: () => worker.port.postMessage({ join: true, since: version }), close: () => worker.port.postMessage({ join: false }) };
  };
  const alone = () => {
    let own = null;
    return {
      join: () => {
        own = new EventSource(`/live?since=${version}`);
        for (const kind of Object.keys(acts)) own.addEventListener(kind, (event) => heard({ kind, id: event.lastEventId, data: event.data }));
        own.onerror = () => acts.away();
      },
      close: () => own?.close(),
    };
  };
  let stream = null;
  const listen = () => {
    if (source || body.dataset.live !== "1" || document.hidden) return;
    stream = stream || (window.SharedWorker ? shared() : alone());
    source = stream;
    stream.join();
  };
  const stop = () => { source?.close(); source = null; };
  document.addEventListener("visibilitychange", () => document.hidden ? stop() : listen());
  addEventListener("pagehide", stop);
  addEventListener("pageshow", listen);
  setInterval(() => {
    if (wanted) reload();
    if (!takenAt || body.dataset.live !== "1") return;
    const old = Date.now() / 1000 - takenAt - Math.min(skew, 0);
    setText("ledger-age", span(old));
  }, 1000);
  document.addEventListener("htmx:afterSwap", () => document.dispatchEvent(new Event("hami:swapped")));

  const theme = byId("theme");
  const apply = (name) => { if (name) document.documentElement.dataset.theme = name; };
  let kept = null;
  try { kept = localStorage.getItem("hami-theme"); } catch { /* storage is off */ }
  apply(kept);
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    apply(dark ? "light" : "dark");
    try { localStorage.setItem("hami-theme", dark ? "light" : "dark"); } catch { /* storage is off */ }
    document.dispatchEvent(new Event("hami:themed"));
  });
  const filter = document.querySelector("form.filter");
  filter?.addEventListener("change", () => filter.requestSubmit());
  // What a cell is, in text, for who points at it; readers of the screen have its label.
  const show = (event) => { const it = event.target.closest?.(".c"), look = byId("look"); if (it && look) look.textContent = it.getAttribute("aria-label"); };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  // A run through the window of /history: each moment is a page of its own.
  for (const it of document.querySelectorAll(".scripted")) it.hidden = false;
  const next = byId("playing")?.dataset.next;
  if (next) setTimeout(() => location.replace(next), 1000);
  const slider = byId("slider");
  if (slider) {
    slider.parentElement.hidden = false;
    slider.addEventListener("change", () => { location.href = `/history?${slider.dataset.also}&at=${new Date(slider.value * 1000).toISOString()}`; });
  }
  listen();
})();
