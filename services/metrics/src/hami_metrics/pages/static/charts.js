"use strict";
// Draws each chart from the table beside it: the same numbers, gaps stay gaps.
(() => {
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676", "#8b6f47"];
  const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
  const iso = (t) => new Date(t * 1000).toISOString();
  // The day stands where it begins, and alone where ticks are days.
  const ticks = (_, splits, axis, space, step) => splits.map((t, n) => {
    const day = iso(t).slice(5, 10), other = n === 0 || iso(splits[n - 1]).slice(5, 10) !== day;
    return step >= 86400 ? day : iso(t).slice(11, 16) + (other ? `\n${day}` : "");
  });
  let drawn = [];
  const draw = () => {
    for (const one of drawn) one.destroy();
    drawn = [];
    const css = getComputedStyle(document.documentElement), fg = css.getPropertyValue("--fg").trim(), line = css.getPropertyValue("--pale").trim();
    const sync = uPlot.sync("time");
    for (const section of document.querySelectorAll(".chart")) {
      const table = section.querySelector("table.series");
      if (!table) continue;
      const names = [...table.querySelectorAll("thead th")].slice(1).map((th) => th.textContent);
      const rows = [...table.querySelectorAll("tbody tr")];
      const data = [rows.map((tr) => Number(tr.cells[0].dataset.t)), ...names.map((_, n) => rows.map((tr) => { const text = tr.cells[n + 1].textContent; return text === "?" ? null : Number(text); }))];
      const axis = { stroke: fg, grid: { stroke: line }, ticks: { stroke: line } };
      const series = names.map((label, n) => ({ label, stroke: COLORS[n % COLORS.length], width: 2, dash: DASHES[Math.floor(n / COLORS.length) % DASHES.length], points: { show: rows.length < 3 }, value: (_, v) => v ?? "" }));
      const box = document.createElement("div");
      box.setAttribute("aria-hidden", "true");
      section.querySelector("h2").after(box);
      drawn.push(new uPlot({ width: Math.max(280, section.clientWidth - 8), height: 180, tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"), cursor: { sync: { key: sync.key } }, scales: { y: { range: (_, min, max) => [0, Math.max(1, max)] } }, axes: [{ ...axis, values: ticks }, { ...axis, size: 50 }], series: [{ value: (_, t) => t === null ? "–" : iso(t).slice(5, 16).replace("T", " ") }, ...series] }, data, box));
    }
  };
  const clear = () => { for (const it of document.querySelectorAll(".chart > [aria-hidden]")) it.remove(); };
  const again = () => { clear(); draw(); };
  document.addEventListener("hami:swapped", again);
  draw();
})();
