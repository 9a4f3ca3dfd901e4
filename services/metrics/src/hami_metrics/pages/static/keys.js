"use strict";
// Keys as k9s has them. A grid is one stop of Tab: arrows move inside it (roving tabindex).
(() => {
  const at = document.body.dataset.at;
  const go = (path) => { location.href = path + (at && path.indexOf("?") < 0 ? at : ""); };
  const typing = (it) => ["INPUT", "SELECT", "TEXTAREA"].includes(it.tagName) || it.isContentEditable;
  const byId = (id) => document.getElementById(id);
  let current = null;

  const cells = () => [...document.querySelectorAll("#grid details[open] .c")];
  const rove = (it) => { if (!it) return; if (current) current.tabIndex = -1; current = it; it.tabIndex = 0; };
  const stop = (all) => all.includes(current) ? current : all[0];
  // What stands in a folded group is no stop.
  const start = () => rove(stop(cells()));
  const focusOn = (it) => { if (it) { rove(it); it.focus(); } };
  const rows = () => [...document.querySelectorAll("#rows tbody tr a:first-of-type")].filter((a, n, all) => all.findIndex((b) => b.closest("tr") === a.closest("tr")) === n);

  const move = (key) => {
    const grid = byId("grid");
    if (!grid) {
      const all = rows(), n = all.indexOf(document.activeElement);
      const step = key === "j" || key === "ArrowDown" ? 1 : key === "k" || key === "ArrowUp" ? -1 : 0;
      if (step && all.length) all[Math.min(all.length - 1, Math.max(0, n < 0 ? 0 : n + step))].focus();
      return Boolean(step && all.length);
    }
    const all = cells(), n = all.indexOf(document.activeElement);
    if (n < 0) { focusOn(stop(all)); return all.length > 0; }
    if (key === "ArrowRight" || key === "l") { focusOn(all[n + 1]); return true; }
    if (key === "ArrowLeft") { focusOn(all[n - 1]); return true; }
    const here = all[n].getBoundingClientRect(), down = key === "j" || key === "ArrowDown";
    const of = (it) => it.getBoundingClientRect();
    let best = null, least = Infinity;
    for (let m = n + (down ? 1 : -1); m >= 0 && m < all.length && Math.abs(m - n) < 400; m += down ? 1 : -1) {
      const box = of(all[m]);
      if (Math.abs(box.top - here.top) < 4) continue;
      const far = Math.abs(box.left - here.left) + 4 * Math.abs(box.top - here.top);
      if (far < least) { least = far; best = all[m]; } else if (best && Math.abs(box.top - of(best).top) > 80) break;
    }
    focusOn(best);
    return true;
  };
  const command = () => {
    const answer = prompt("go to (node NAME, pod NAMESPACE/NAME):", "node ");
    const found = /^\s*(node|pod)\s+(\S+)\s*$/.exec(answer || "");
    if (!found) return;
    const path = found[2].split("/").map(encodeURIComponent).join("/");
    go(found[1] === "node" ? `/nodes/${path}` : `/pods/${path}`);
  };
  const acts = {
    "/": () => byId("filter")?.focus(), ":": command, "?": () => byId("keys").showModal(),
    "Escape": () => { const steps = location.pathname.split("/").filter(Boolean); if (steps.length) go(steps[0] === "cards" && document.body.dataset.subject ? `/nodes/${encodeURIComponent(document.body.dataset.subject)}` : "/"); },
    "[": () => history.back(), "]": () => history.forward(),
    "z": () => { const it = byId("problems"); if (it) { it.checked = !it.checked; it.form.requestSubmit(); } },
    "c": () => { const text = byId("copy")?.textContent || current?.getAttribute("aria-label") || document.body.dataset.subject; if (text) navigator.clipboard?.writeText(text); },
    "t": () => document.querySelector("input[name=at]")?.focus(),
    ",": () => byId("previous")?.click(), ".": () => byId("next")?.click(),
    "s": () => byId("sort")?.focus(),
    "o": () => go("/"), "n": () => go("/nodes"), "w": () => go("/pods"), "p": () => go("/pending"), "h": () => go("/history"), "b": () => go("/showback"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (typing(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
    if (["j", "k", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"].includes(event.key)) {
      const inside = event.target.closest?.("#grid, #rows") || ["j", "k"].includes(event.key);
      if (inside && move(event.key)) event.preventDefault();
      return;
    }
    const act = acts[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  document.addEventListener("focusin", (event) => { if (event.target.classList?.contains("c")) rove(event.target); });
  document.addEventListener("hami:swapped", start);
  document.addEventListener("hami:patched", start);
  document.addEventListener("toggle", start, true);
  const help = byId("help");
  help.hidden = false;
  help.addEventListener("click", () => byId("keys").showModal());
  start();
})();
